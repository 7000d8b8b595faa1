// rippled with the patch that adds tracepoints, and the functions between which the time of a transaction is measured. Only
// names, order and types are its own.
#define SEMAPHORES 0
#include "tracepoint.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

const char *const FLAVOUR = "rippled";

DEFINE_3(transactor, transactor_exit, const Id *, const int32_t *, const int32_t *)
DEFINE_2(peer, connect, const Endpoint *, const PublicKey *)
DEFINE_2(peer, disconnect, const Endpoint *, const PublicKey *)
DEFINE_4(peer, send, const Endpoint *, const PublicKey *, const uint64_t *, const int32_t *)
DEFINE_4(peer, receive, const Endpoint *, const PublicKey *, const uint64_t *, const int32_t *)

#define PEER "endpoint=203.0.113.7:51235", "public_key=1"

const Location LOCATIONS[] = {
    ENTRY(transactor, transactor_exit, 1, "txid=1", "type=0", "result=0"),
    ENTRY(peer, connect, 1, PEER),
    ENTRY(peer, disconnect, 1, PEER),
    ENTRY(peer, send, 1, PEER, "category=4", "size=100"),
    ENTRY(peer, receive, 1, PEER, "category=4", "size=100"),
};
const size_t LOCATION_COUNT = sizeof LOCATIONS / sizeof *LOCATIONS;

namespace ripple {

// What one transaction is to do.
struct PreflightContext {
    const char *txid, *type, *result;
    uint64_t preflight_us, apply_us;
    bool throws;
};

static void busy(uint64_t us) {
    for (uint64_t end = monotonic_ns() + us * 1000; monotonic_ns() < end;) {}
}

class Transactor {
protected:
    const PreflightContext &context;

public:
    explicit Transactor(const PreflightContext &context) : context(context) {}
    virtual ~Transactor() = default;
    virtual int32_t doApply() = 0;
    int32_t operator()();
};

class Payment : public Transactor {
public:
    using Transactor::Transactor;
    static int32_t preflight(const PreflightContext &context);
    int32_t doApply() override;
};

class CreateOffer : public Transactor {
public:
    using Transactor::Transactor;
    static int32_t preflight(const PreflightContext &context);
    int32_t doApply() override;
};

APART int32_t Payment::preflight(const PreflightContext &context) {
    busy(context.preflight_us);
    return 0;
}

APART int32_t CreateOffer::preflight(const PreflightContext &context) {
    busy(context.preflight_us);
    return 0;
}

static int32_t apply(const PreflightContext &context) {
    busy(context.apply_us);
    if (context.throws) throw context.result;
    return std::atoi(context.result + sizeof "result");
}

APART int32_t Payment::doApply() { return apply(context); }
APART int32_t CreateOffer::doApply() { return apply(context); }

APART int32_t Transactor::operator()() {
    int32_t result = doApply();
    const char *settings[] = {context.txid, context.type, context.result};
    fire_now("transactor:transactor_exit", settings, 3);
    return result;
}

// preflight, then operator() and in it doApply, as for a transaction.
template <class T>
static void transaction(const PreflightContext &context, bool is_applied) {
    uint64_t before = monotonic_ns();
    T::preflight(context);
    report_call("preflight", before);
    if (!is_applied) return;
    before = monotonic_ns();
    try {
        T{context}();
    } catch (const char *) {
    }
    report_call("operator()", before);
}

} // namespace ripple

// transaction kind=payment|offer [txid=] [result=] [preflight_us=] [apply_us=] [throws=0|1] [applied=0|1]
bool flavour_command(const char *command, const char *(*setting)(const char *, const char *)) {
    if (std::strcmp(command, "transaction")) return false;
    auto number = [&](const char *name, const char *otherwise) { return std::strtoull(setting(name, otherwise), nullptr, 10); };
    char txid[80], result[20];
    std::snprintf(txid, sizeof txid, "txid=%s", setting("txid", "1"));
    std::snprintf(result, sizeof result, "result=%s", setting("result", "0"));
    bool is_payment = !std::strcmp(setting("kind", "payment"), "payment");
    if (!is_payment && std::strcmp(setting("kind", "offer"), "offer")) refuse("neither payment nor offer");
    ripple::PreflightContext context{txid, is_payment ? "type=0" : "type=7", result, number("preflight_us", "100"),
                                     number("apply_us", "1000"), number("throws", "0") != 0};
    bool is_applied = number("applied", "1");
    is_payment ? ripple::transaction<ripple::Payment>(context, is_applied)
               : ripple::transaction<ripple::CreateOffer>(context, is_applied);
    return true;
}
