// The commands of the fake node, read from standard input; `testing/src/fakenode` documents them.
#define SEMAPHORES 0
#include "values.h"
#include <cerrno>
#include <cinttypes>
#include <ctime>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

uint64_t monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

void wait_until(uint64_t ns) {
    timespec until{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {}
}

// Writes a whole line.
void put(const std::string &line) {
    std::string text = line + "\n";
    for (size_t at = 0; at < text.size();) {
        ssize_t written = write(1, text.data() + at, text.size() - at);
        if (written < 0 && errno != EINTR) std::exit(1);
        at += written < 0 ? 0 : written;
    }
}

std::string field(const char *name, uint64_t value) { return ",\"" + std::string(name) + "\":" + std::to_string(value); }

// A location with the names of its arguments and their defaults.
struct Target {
    const Location &location;
    std::vector<std::string> names;
    Settings defaults;

    explicit Target(const Location &location) : location(location) {
        for (const char *setting : location.settings) {
            if (!setting) break;
            const char *equals = std::strchr(setting, '=');
            names.emplace_back(setting, equals);
            defaults[names.back()] = equals + 1;
        }
        if (names.size() < location.count) throw std::logic_error("too few names for " + std::string(location.name));
    }

    static Target find(const std::string &name) {
        size_t mark = name.find('#');
        int number = mark == std::string::npos ? 1 : std::stoi(name.substr(mark + 1));
        for (size_t i = 0; i < LOCATION_COUNT; i++)
            if (LOCATIONS[i].name == name.substr(0, mark) && LOCATIONS[i].number == number) return Target(LOCATIONS[i]);
        throw std::invalid_argument("unknown tracepoint: " + name);
    }

    void evaluate(Evaluation &evaluation, uint64_t *values) const {
        for (size_t i = 0; i < location.count; i++) values[i] = evaluation.evaluate(location.kinds[i], names[i]);
    }
};

// Fires once; returns the oracle's line.
std::string fire(const Target &target, const Settings &settings, uint64_t number) {
    const Location &location = target.location;
    Evaluation evaluation(settings, target.defaults, number, true);
    uint64_t values[12];
    target.evaluate(evaluation, values);
    unsigned active = location.semaphore ? *location.semaphore : 1;
    uint64_t before = monotonic_ns();
    location.fire(values);
    uint64_t after = monotonic_ns();
    return "{\"event\":\"fired\",\"tracepoint\":\"" + std::string(location.name) + "\"" + field("location", location.number) +
           field("number", number) + field("pid", getpid()) + field("tid", gettid()) + field("active", active) +
           field("before_ns", before) + field("after_ns", after) + ",\"arguments\":{" + evaluation.json + "}}";
}

// Numbers first, first + step, … below count, at the given time from each to the next.
void fire_many(const Target &target, const Settings &settings, uint64_t first, uint64_t count,
                      uint64_t step, uint64_t interval_ns, bool is_quiet, std::vector<std::string> &lines) {
    bool is_same = true;
    for (const auto &[name, value] : settings) is_same &= value.find('#') == std::string::npos;
    Evaluation constant(settings, target.defaults, first, false);
    uint64_t values[12];
    target.evaluate(constant, values);
    uint64_t next = monotonic_ns();
    for (uint64_t number = first; number < count; number += step) {
        if (!is_quiet) lines.push_back(fire(target, settings, number));
        else if (is_same) target.location.fire(values);
        else {
            Evaluation evaluation(settings, target.defaults, number, false);
            uint64_t own[12];
            target.evaluate(evaluation, own);
            target.location.fire(own);
        }
        if (interval_ns && (next += interval_ns) > monotonic_ns()) wait_until(next);
    }
}

uint64_t take(Settings &settings, const char *name, uint64_t otherwise) {
    auto found = settings.find(name);
    if (found == settings.end()) return otherwise;
    uint64_t value = std::stoull(found->second);
    settings.erase(found);
    return value;
}

// Fires count times on several threads at a total rate. The lines are written after the last firing.
void repeat(const Target &target, Settings settings, uint64_t count) {
    uint64_t threads = take(settings, "threads", 1), rate = take(settings, "rate", 0), quiet = take(settings, "quiet", 0);
    if (!threads) throw std::invalid_argument("no threads");
    std::vector<std::vector<std::string>> lines(threads);
    std::vector<std::string> errors(threads);
    std::vector<std::thread> running;
    uint64_t interval = rate ? threads * 1000000000 / rate : 0;
    for (uint64_t i = 0; i < threads; i++)
        running.emplace_back([&, i] {
            try {
                fire_many(target, settings, i, count, threads, interval, quiet, lines[i]);
            } catch (const std::exception &error) {
                errors[i] = error.what();
            }
        });
    for (std::thread &thread : running) thread.join();
    for (const std::string &error : errors)
        if (!error.empty()) throw std::invalid_argument(error);
    for (const auto &of_thread : lines)
        for (const std::string &line : of_thread) put(line);
}

void known_settings(const Target &target, const Settings &settings) {
    for (const auto &[name, value] : settings)
        if (!target.defaults.contains(name) && name != "threads" && name != "rate" && name != "quiet")
            throw std::invalid_argument(target.location.name + std::string(" has no argument ") + name);
}

void execute(const std::string &line);

// Settings of the command of the flavour that is being executed.
const Settings *current;
const char *setting(const char *name, const char *otherwise) {
    auto found = current->find(name);
    return found == current->end() ? otherwise : found->second.c_str();
}

void fire_now(const char *name, const char *const *settings, size_t count) {
    Settings given;
    for (size_t i = 0; i < count; i++) {
        const char *equals = std::strchr(settings[i], '=');
        given[std::string(settings[i], equals)] = equals + 1;
    }
    put(fire(Target::find(name), given, 0));
}

void report_call(const char *function, uint64_t before_ns) {
    put("{\"event\":\"called\",\"function\":\"" + std::string(function) + "\"" + field("tid", gettid()) +
        field("before_ns", before_ns) + field("after_ns", monotonic_ns()) + "}");
}

void refuse(const char *message) { throw std::invalid_argument(message); }

// Executes a command in a child, which then ends.
void in_child(const std::string &line) {
    pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (!child) {
        execute(line);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) throw std::runtime_error("the child failed");
}

void execute(const std::string &line) {
    std::istringstream words(line);
    std::string command, name, word;
    words >> command;
    uint64_t before = monotonic_ns();
    if (command == "fork") {
        std::getline(words, word);
        return in_child(word);
    }
    if (command == "exec") {
        execl("/proc/self/exe", FLAVOUR, nullptr);
        throw std::runtime_error("exec failed");
    }
    uint64_t count = 1;
    if (command == "repeat" || command == "pause") {
        if (!(words >> count)) throw std::invalid_argument("a number is missing: " + line);
    }
    if (command == "fire" || command == "repeat") words >> name;
    Settings settings;
    while (words >> word) {
        size_t equals = word.find('=');
        if (equals == std::string::npos) throw std::invalid_argument("not name=value: " + word);
        settings[word.substr(0, equals)] = word.substr(equals + 1);
    }
    auto payload = settings.find("payload");
    if (payload != settings.end() && payload->second.rfind("hex:", 0) == 0 && !settings.contains("size"))
        settings["size"] = std::to_string((payload->second.size() - 4) / 2);
    if (command == "fire" || command == "repeat") {
        Target target = Target::find(name);
        known_settings(target, settings);
        if (command == "fire") put(fire(target, settings, 0));
        else repeat(target, settings, count);
    } else if (command == "pause") wait_until(before + count * 1000000);
    else if (command == "semaphores") {
        std::string values;
        for (size_t i = 0; i < LOCATION_COUNT; i++) {
            const Location &at = LOCATIONS[i];
            if (!at.semaphore || at.number != 1) continue;
            values += (values.empty() ? "\"" : ",\"") + std::string(at.name) + "\":" + std::to_string(*at.semaphore);
        }
        put("{\"event\":\"semaphores\",\"values\":{" + values + "}}");
    } else if (current = &settings; !flavour_command(command.c_str(), setting)) throw std::invalid_argument("unknown command: " + line);
    put("{\"event\":\"done\"" + field("before_ns", before) + field("after_ns", monotonic_ns()) + "}");
}

int main() {
    // Nothing of the following commands is lost by `exec`.
    std::setvbuf(stdin, nullptr, _IONBF, 0);
    put("{\"event\":\"ready\",\"flavour\":\"" + std::string(FLAVOUR) + "\"" + field("pid", getpid()) + "}");
    char *line = nullptr;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) > 0;) {
        std::string text(line, length);
        while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
        if (text.empty()) continue;
        try {
            execute(text);
        } catch (const std::exception &error) {
            put("{\"event\":\"error\",\"message\":" + json_text(error.what()) + "}");
        }
    }
    std::free(line);
}
