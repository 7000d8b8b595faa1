// Values of arguments: from the settings of a command into memory, and from there into the oracle's line.
//
// Settings are `name=value`. In a value, `#` is the number of the firing in its command and `%XX` a byte. Pointers may be
//   @null          NULL
//   @unreadable    an address that cannot be read
//   @cut:N         N bytes, then memory that cannot be read (a text has no end)
//   @untouched     read-only memory that nothing has touched
//   @length:N      (text) N characters
//   @seeded        (payload) `size` bytes of the generator that `seed` starts
//   hex:BYTES      (payload) these; `size` is their number unless given
// A hash is 64 digits in the order of display, or a number from which one is made.
#pragma once
#include "memory.h"
#include "sha256.h"
#include "tracepoint.h"
#include <map>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using Settings = std::map<std::string, std::string, std::less<>>;

inline std::string hex(const unsigned char *bytes, uint64_t length) {
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (uint64_t i = 0; i < length; i++) (text += digits[bytes[i] >> 4]) += digits[bytes[i] & 15];
    return text;
}

inline std::string unhex(const std::string &digits) {
    std::string bytes;
    if (digits.size() % 2 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
        throw std::invalid_argument("not hexadecimal: " + digits.substr(0, 40));
    for (size_t i = 0; i < digits.size(); i += 2)
        bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    return bytes;
}

// SplitMix64.
inline uint64_t random_number(uint64_t &state) {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

inline std::string random_bytes(uint64_t seed, uint64_t length) {
    std::string bytes(length, '\0');
    for (uint64_t at = 0; at < length; at += 8) {
        uint64_t number = random_number(seed);
        std::memcpy(bytes.data() + at, &number, std::min<uint64_t>(8, length - at));
    }
    return bytes;
}

// Text as JSON; with bytes other than printable ASCII as {"hex": …}.
inline std::string json_text(const std::string &text) {
    std::string quoted = "\"";
    for (unsigned char c : text) {
        if (c < 0x20 || c > 0x7e)
            return "{\"hex\":\"" + hex(reinterpret_cast<const unsigned char *>(text.data()), text.size()) + "\"}";
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += static_cast<char>(c);
    }
    return quoted + "\"";
}

// The values of one firing.
class Evaluation {
    const Settings &settings;
    const Settings &defaults;
    std::string number;
    bool is_described;
    uint64_t size = 0;
    std::vector<std::shared_ptr<const std::string>> memory;

    void describe(std::string_view name, const std::string &value) {
        if (!is_described) return;
        if (!json.empty()) json += ',';
        ((json += '"') += name) += "\":" + value;
    }

    // Memory that lives as long as this object. Its end is the end of an allocation, so that reading past it shows.
    const char *hold(std::shared_ptr<const std::string> bytes) {
        memory.push_back(std::move(bytes));
        return memory.back()->data();
    }
    const char *hold(std::string bytes) { return hold(std::make_shared<const std::string>(std::move(bytes))); }

    std::string raw(std::string_view name) const {
        auto found = settings.find(name);
        if (found == settings.end()) found = defaults.find(name);
        if (found == defaults.end()) throw std::logic_error("no default for " + std::string(name));
        std::string text;
        const std::string &value = found->second;
        for (size_t i = 0; i < value.size(); i++) {
            if (value[i] == '#') text += number;
            else if (value[i] == '%') text += unhex(value.substr(i + 1, 2)), i += 2;
            else text += value[i];
        }
        return text;
    }

    static uint64_t after_colon(const std::string &value) { return std::stoull(value.substr(value.find(':') + 1)); }
    static bool begins(const std::string &value, const char *with) { return value.rfind(with, 0) == 0; }

    // A pointer that leads nowhere.
    bool bad_pointer(std::string_view name, const std::string &value, const char *&at) {
        if (value == "@null") at = nullptr, describe(name, "null");
        else if (value == "@unreadable") at = unreadable(), describe(name, "{\"unreadable\":true}");
        else return false;
        return true;
    }

    const char *text(std::string_view name, const std::string &value) {
        const char *at;
        if (bad_pointer(name, value, at)) return at;
        if (value == "@untouched") {
            describe(name, json_text(UNTOUCHED_TEXT));
            return untouched();
        }
        bool is_cut = begins(value, "@cut:");
        std::string content = value;
        if (is_cut || begins(value, "@length:")) {
            content.resize(after_colon(value));
            for (size_t i = 0; i < content.size(); i++) content[i] = static_cast<char>('a' + i % 26);
        }
        if (!is_cut) {
            describe(name, json_text(content));
            return hold(content);
        }
        describe(name, "{\"readable\":" + json_text(content) + "}");
        return static_cast<char *>(std::memcpy(before_unreadable(content.size()), content.data(), content.size()));
    }

    static std::shared_ptr<const std::string> seeded(uint64_t seed, uint64_t length) {
        static std::mutex lock;
        static std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<const std::string>> known;
        std::lock_guard guard(lock);
        auto &bytes = known[{seed, length}];
        if (!bytes) {
            bytes = std::make_shared<const std::string>(random_bytes(seed, length));
            if (known.size() > 64) {
                auto found = bytes;
                known.clear();
                return found;
            }
        }
        return bytes;
    }

    const char *payload(std::string_view name, const std::string &value) {
        const char *at;
        if (bad_pointer(name, value, at)) return at;
        auto digest = [&](const char *bytes, uint64_t length, const char *unit) {
            if (!is_described) return;
            auto hash = Sha256::hex(reinterpret_cast<const unsigned char *>(bytes), length);
            describe(name, "{\"" + std::string(unit) + "\":" + std::to_string(length) + ",\"sha256\":\"" + hash + "\"}");
        };
        if (value == "@untouched") {
            if (size > 4096) throw std::invalid_argument("at most 4096 bytes are untouched");
            std::string copy = UNTOUCHED_TEXT;
            copy.resize(size);
            digest(copy.data(), size, "length");
            return untouched();
        }
        if (begins(value, "@cut:")) {
            uint64_t readable = after_colon(value);
            auto bytes = random_bytes(std::stoull(raw("seed")), readable);
            digest(bytes.data(), readable, "readable");
            return static_cast<char *>(std::memcpy(before_unreadable(readable), bytes.data(), readable));
        }
        if (begins(value, "hex:")) {
            auto bytes = hold(unhex(value.substr(4)));
            digest(bytes, memory.back()->size(), "length");
            return bytes;
        }
        if (value != "@seeded") throw std::invalid_argument("unknown payload: " + value.substr(0, 40));
        auto bytes = hold(seeded(std::stoull(raw("seed")), size));
        digest(bytes, size, "length");
        return bytes;
    }

    const char *hash(std::string_view name, const std::string &value, bool is_reversed) {
        const char *at;
        if (bad_pointer(name, value, at)) return at;
        std::string bytes = value.size() == 64 ? unhex(value) : random_bytes(std::stoull(value), 32);
        describe(name, json_text(hex(reinterpret_cast<const unsigned char *>(bytes.data()), 32)));
        if (is_reversed) bytes = std::string(bytes.rbegin(), bytes.rend());
        return hold(bytes);
    }

    // An object of which only the address is passed on.
    const char *object(std::string_view name, const std::string &bytes) {
        const char *at = hold(bytes);
        describe(name, std::to_string(reinterpret_cast<uintptr_t>(at)));
        return at;
    }

    const char *endpoint(std::string_view name, const std::string &value) {
        const char *at;
        if (bad_pointer(name, value, at)) return at;
        sockaddr_in address{};
        size_t colon = value.rfind(':');
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(after_colon(value.substr(colon))));
        if (inet_pton(AF_INET, value.substr(0, colon).c_str(), &address.sin_addr) != 1)
            throw std::invalid_argument("not an address: " + value);
        return object(name, std::string(reinterpret_cast<char *>(&address), sizeof address));
    }

    template <class T>
    T scalar(std::string_view name, const std::string &value) {
        size_t end = 0;
        auto is_complete = [&] {
            if (end != value.size()) throw std::invalid_argument("not a number: " + value.substr(0, 40));
        };
        if constexpr (std::is_same_v<T, bool>) {
            if (value != "true" && value != "false") throw std::invalid_argument("neither true nor false: " + value);
            describe(name, value);
            return value == "true";
        } else if constexpr (std::is_signed_v<T>) {
            T result = static_cast<T>(std::stoll(value, &end));
            is_complete();
            describe(name, std::to_string(result));
            return result;
        } else {
            T result = static_cast<T>(std::stoull(value, &end));
            is_complete();
            describe(name, std::to_string(result));
            if (name == "size") size = result;
            return result;
        }
    }

    template <class T>
    const char *pointer(std::string_view name, const std::string &value) {
        const char *at;
        if (bad_pointer(name, value, at)) return at;
        T number = scalar<T>(name, value);
        return hold(std::string(reinterpret_cast<char *>(&number), sizeof number));
    }

public:
    // Content of the JSON object of the arguments.
    std::string json;

    Evaluation(const Settings &settings, const Settings &defaults, uint64_t number, bool is_described)
        : settings(settings), defaults(defaults), number(std::to_string(number)), is_described(is_described) {}

    uint64_t evaluate(Kind kind, std::string_view name) {
        std::string value = raw(name);
        const char *at = nullptr;
        switch (kind) {
        case Kind::I32: return scalar<int32_t>(name, value);
        case Kind::U32: return scalar<uint32_t>(name, value);
        case Kind::I64: return scalar<int64_t>(name, value);
        case Kind::U64: return scalar<uint64_t>(name, value);
        case Kind::Bool: return scalar<bool>(name, value);
        case Kind::Text: at = text(name, value); break;
        case Kind::Hash: at = hash(name, value, true); break;
        case Kind::Id: at = hash(name, value, false); break;
        case Kind::Payload: at = payload(name, value); break;
        case Kind::Endpoint: at = endpoint(name, value); break;
        case Kind::PublicKey: at = object(name, random_bytes(std::stoull(value), 33)); break;
        case Kind::ToI32: at = pointer<int32_t>(name, value); break;
        case Kind::ToI64: at = pointer<int64_t>(name, value); break;
        case Kind::ToU64: at = pointer<uint64_t>(name, value); break;
        }
        return reinterpret_cast<uint64_t>(at);
    }
};
