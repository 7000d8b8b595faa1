//! Recording of function latency: plans, blocks, and what becomes of the process. Needs root, a kernel with BTF, gcc and binutils;
//! fails where these are missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod latency_common;

use std::{fs, path::Path, process::Command};

use chainscope_agent::latency::{
    Exits, Plan, ProcessState, Program, RecordError, RecordOptions, Recorder, SpanRequest, TransactionRequest,
};
use chainscope_latency::{Block, LossReason, Run};
use chainscope_testing::{
    fakenode::{FakeNode, Flavour},
    program,
    wait::until_true,
};
use latency_common::{Target, assert_agrees, folder, merged, plain, plan, request, source, workload};

#[expect(clippy::disallowed_methods, reason = "records have times of the wall clock")]
fn wall_clock_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

#[test]
fn a_run_of_a_process() {
    let program = workload("record_run");
    let mut target = Target::start(&program);
    let requests = [request("work::nap", None), request("preflight", Some("work::apply"))];
    let plan = plan(Some(target.child.id()), None, &requests).unwrap();
    assert!(!plan.has_return_probes && plan.hazard.is_some(), "exceptions");
    let options = RecordOptions { commit: Some("abc".to_owned()), ..RecordOptions::default() };
    let mut recorder = Recorder::attach(&plan, &options).unwrap();
    assert_eq!(recorder.state(), ProcessState::Running);
    target.answer("nap 30 3000");
    let mut blocks = recorder.sample().unwrap();
    target.answer("nap 30 6000");
    target.answer("submit 25 4000");
    target.answer("refuse 3 100");
    blocks.extend(recorder.sample().unwrap());
    assert!(recorder.sample().unwrap().is_empty(), "nothing happened");
    let functions = recorder.functions().to_vec();
    let (info, last) = recorder.finish().unwrap();
    blocks.extend(last);
    assert_eq!(blocks.iter().map(|block| block.function).collect::<Vec<_>>(), [0, 0, 1, 1]);
    assert_eq!((blocks[0].histogram.count(), blocks[1].histogram.count()), (30, 30));
    assert_agrees(&merged(&blocks, 0), &target.answer("exact nap"));
    assert_agrees(&merged(&blocks, 1), &target.answer("exact submit"));
    // 4000 % 3 is 1: all were applied. Three started and never ended: two were replaced by the next one.
    assert_eq!(blocks[2].returns.get(&0), Some(&25));
    assert_eq!((blocks[2].unended, blocks[3].unended), (2, 1));
    let run = Run { info, functions, blocks, transactions: Vec::new() };
    assert_eq!(
        (run.functions[0].name.as_str(), run.functions[1].name.as_str()),
        ("work::nap(long)", "preflight to work::apply")
    );
    assert_eq!((run.info.pid, run.info.commit.as_deref()), (target.child.id(), Some("abc")));
    assert!(run.info.build_id.is_some_and(|id| id.len() == 40));
    assert!(run.info.end.is_some_and(|end| end > run.info.start));
}

#[test]
fn stripped_with_a_debug_file_before_it_starts() {
    let whole = workload("record_debug");
    let (stripped, debug) = (whole.with_extension("stripped"), whole.with_extension("debug"));
    let objcopy = |arguments: &[&str], from: &Path, to: &Path| {
        assert!(Command::new("objcopy").args(arguments).arg(from).arg(to).status().unwrap().success());
    };
    objcopy(&["--only-keep-debug"], &whole, &debug);
    objcopy(&["--strip-all"], &whole, &stripped);
    let error = plan(None, Some(&stripped), &[request("work::nap", None)]).unwrap_err().to_string();
    assert!(error.contains("the file is stripped"), "{error}");
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={}", debug.display())], &whole, &stripped);
    let plan = plan(None, Some(&stripped), &[request("work::nap", None)]).unwrap();
    let recorder = Recorder::attach(&plan, &RecordOptions::default()).unwrap();
    let mut target = Target::start(&stripped);
    target.answer("nap 40 3000");
    let (_, blocks) = recorder.finish().unwrap();
    assert_agrees(&merged(&blocks, 0), &target.answer("exact nap"));
}

#[test]
fn a_process_that_ends_and_a_file_that_is_replaced() {
    let program = plain("record_ends");
    let mut target = Target::start(&program);
    let plan = plan(Some(target.child.id()), None, &[request("plain_nap", None)]).unwrap();
    assert!(plan.has_return_probes, "C without exceptions");
    let recorder = Recorder::attach(&plan, &RecordOptions::default()).unwrap();
    target.answer("nap 5 1000");
    let other = program.with_extension("other");
    program::copy(&program, &other);
    fs::rename(&other, &program).unwrap();
    assert_eq!(recorder.state(), ProcessState::Replaced);
    target.answer("nap 5 1000");
    target.end();
    until_true("the end is seen", || recorder.state() == ProcessState::Ended);
    let (_, blocks) = recorder.finish().unwrap();
    assert_eq!(merged(&blocks, 0).count(), 10, "what was counted remains");
}

#[test]
fn what_cannot_be_recorded() {
    let program = plain("record_errors");
    let message = |requests: &[SpanRequest]| plan(None, Some(&program), requests).unwrap_err().to_string();
    assert!(message(&[request("plain_nup", None)]).contains("nearest: plain_nap"));
    assert!(message(&[request("many_*", None)]).contains("matches 1000 functions"));
    assert!(matches!(Program::open(Some(u32::MAX >> 2), None), Err(RecordError::NoProcess(_))));
    assert!(matches!(Program::open(None, None), Err(RecordError::NoProgram)));
    let error = Program::open(None, Some(&source("latency_plain.c"))).unwrap_err().to_string();
    assert!(error.contains("latency_plain.c: not a readable ELF file"), "{error}");
    let error = Program::open(None, Some(Path::new("/dev/null"))).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    // As of Go: what its linker adds.
    let go = folder().join("record_go");
    let section = format!("--add-section=.gopclntab={}", source("latency_plain.c").display());
    assert!(Command::new("objcopy").arg(section).arg(&program).arg(&go).status().unwrap().success());
    assert!(matches!(plan(None, Some(&go), &[request("plain_nap", None)]), Err(RecordError::Go(_))));
}

#[test]
fn plans_say_what_they_cost_and_leave_out() {
    let program = workload("record_plan");
    let requests = ["work::chain", "work::jump", "work::steps", "work::code"].map(|entry| request(entry, None));
    let plan = plan(None, Some(&program), &requests).unwrap();
    let notes: Vec<&str> =
        plan.functions.iter().map(|function| function.notes.first().map_or("", String::as_str)).collect();
    assert!(
        notes[0].contains("jumps to other functions")
            && notes[1].contains("never end")
            && notes[2].contains("coroutine"),
        "{notes:?}"
    );
    assert_eq!(notes[3], "");
    assert!(plan.functions[3].cost > plan.functions[0].cost, "its `ret` is single-stepped");
    let options = RecordOptions { exits: Exits::Returns, ..RecordOptions::default() };
    let forced = Plan::new(Program::open(None, Some(&program)).unwrap(), &requests[3..], &options).unwrap();
    assert!(forced.has_return_probes && forced.hazard.is_some(), "a warning is due");
}

#[test]
fn transactions_one_by_one() {
    let own = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(own.path(), Flavour::Rippled);
    let options = RecordOptions::default();
    let requested = TransactionRequest {
        name: "transaction".to_owned(),
        entry: "Transactor::operator()".parse().unwrap(),
        tracepoint: "transactor:transactor_exit".to_owned(),
    };
    let plan = plan(Some(node.pid()), None, &[request("Payment::doApply", None)]).unwrap();
    let plan = plan.with_transactions(&requested, &options).unwrap();
    assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
    let mut recorder = Recorder::attach(&plan, &options).unwrap();
    let function = recorder.functions().iter().position(|function| function.name == "transaction").unwrap();
    assert_eq!(recorder.functions()[function].exit.pattern, "transactor:transactor_exit");
    // What the program says of each: the ids, types and results, and the time of the call.
    let mut expected = Vec::new();
    for number in 0..40_u64 {
        let kind = if number % 3 == 0 { "offer" } else { "payment" };
        let (result, us) = ([0, -99, 104, 255, -399][number as usize % 5], 200 * (number % 7 + 1));
        let reply = node.execute(&format!(
            "transaction kind={kind} txid={} result={result} preflight_us=10 apply_us={us}",
            number % 11
        ));
        let fired = &reply.fired[0];
        let called = reply.called.iter().find(|called| called.function == "operator()").unwrap();
        let kind = i64::from(kind == "offer") * 7;
        assert_eq!((fired.number_of("type"), fired.number_of("result")), (kind, result));
        let bounds = (us * 1000, called.after_ns - called.before_ns);
        expected.push((fired.show("txid").to_uppercase(), kind, result, bounds));
    }
    // One that throws has no end; a hit of the tracepoint elsewhere no start; of some the id cannot be read.
    node.execute("transaction txid=5 throws=1");
    node.execute("transaction txid=@null apply_us=100");
    node.execute("fire transactor:transactor_exit txid=7");
    node.execute("transaction txid=5 applied=0");
    let (before, mut blocks) = (wall_clock_ns(), recorder.sample().unwrap());
    recorder.stop().unwrap();
    let facts = recorder.take_transactions();
    let (_, last) = recorder.finish().unwrap();
    blocks.extend(last);
    let found: Vec<_> = facts.iter().map(|fact| (fact.id.to_string(), fact.kind, fact.result)).collect();
    assert_eq!(found, expected.iter().map(|(id, kind, result, _)| (id.clone(), *kind, *result)).collect::<Vec<_>>());
    for (fact, (.., (least, most))) in facts.iter().zip(&expected) {
        assert!((*least..=*most).contains(&fact.duration_ns), "{fact:?}: {least} to {most}");
        assert!(fact.time.0 < before && before - fact.time.0 < 60_000_000_000, "{fact:?} before {before}");
    }
    assert!(facts.is_sorted_by_key(|fact| fact.time));
    let of_them: Vec<&Block> = blocks.iter().filter(|block| block.function == function).collect();
    let histogram = merged(&blocks, function);
    assert_eq!(histogram.count(), 41, "with the one whose id is unreadable");
    assert_eq!(histogram.max(), blocks.iter().filter_map(|block| block.histogram.max()).max());
    let sum = |counts: &dyn Fn(&Block) -> u64| of_them.iter().map(|block| counts(block)).sum::<u64>();
    let lost = |reason| sum(&|block| block.lost.get(&reason).copied().unwrap_or(0));
    assert_eq!(
        (lost(LossReason::Unreadable), lost(LossReason::NoEntry), lost(LossReason::TransactionsFull)),
        (1, 1, 0)
    );
    assert_eq!((sum(&|block| block.unended), sum(&|block| block.returns[&255])), (1, 8));
}

#[test]
fn transactions_that_no_ring_can_hold_are_counted() {
    let own = tempfile::tempdir().unwrap();
    let mut node = FakeNode::run(own.path(), Flavour::Rippled);
    let options = RecordOptions::default();
    let requested = TransactionRequest {
        name: "firing".to_owned(),
        entry: "Transactor::operator()".parse().unwrap(),
        tracepoint: "transactor:transactor_exit".to_owned(),
    };
    let plan = plan(Some(node.pid()), None, &[request("Payment::doApply", None)]).unwrap();
    let mut recorder = Recorder::attach(&plan.with_transactions(&requested, &options).unwrap(), &options).unwrap();
    let function = recorder.functions().len() - 1;
    // Nobody reads meanwhile. Each is lost: there was no entry, or no room.
    node.execute("repeat 60000 transactor:transactor_exit txid=# quiet=1");
    node.execute("transaction txid=5 apply_us=100");
    recorder.poll().unwrap();
    let after = node.execute("transaction txid=6 apply_us=100").fired[0].show("txid").to_uppercase();
    recorder.stop().unwrap();
    let facts = recorder.take_transactions();
    let (_, blocks) = recorder.finish().unwrap();
    let block = blocks.iter().find(|block| block.function == function).unwrap();
    let lost: u64 = block.lost.values().sum();
    assert!(block.lost[&LossReason::TransactionsFull] > 0, "{:?}", block.lost);
    assert_eq!(lost + facts.len() as u64, 60_002, "{:?}", block.lost);
    assert_eq!(facts.iter().map(|fact| fact.id.to_string()).collect::<Vec<_>>(), [after]);
}

#[test]
fn without_the_tracepoint_there_are_no_transactions() {
    let program = plain("record_no_tracepoint");
    let requested = TransactionRequest {
        name: "transaction".to_owned(),
        entry: "plain_nap".parse().unwrap(),
        tracepoint: "transactor:transactor_exit".to_owned(),
    };
    let plan = plan(None, Some(&program), &[request("plain_nap", None)]).unwrap();
    let plan = plan.with_transactions(&requested, &RecordOptions::default()).unwrap();
    assert!(plan.transactions.is_none());
    assert_eq!(plan.skipped[0].reason, "the program does not have the tracepoint transactor:transactor_exit");
}
