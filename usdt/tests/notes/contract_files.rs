//! Contract files: what they say, and the line of what they get wrong.

use chainscope_usdt::{ContractError, Kind, Length, Scalar, built_in, parse};

const FILE: &str = r#"
name = "example"
title = "Example"
programs = ["exampled"]
releases = ["v1", "v2", "v3"]
semaphores = { from = "v2" }

[[tracepoints]]
provider = "net"
name = "message"
note = "once for each message"
arguments = [
  { name = "size", kind = "u64", unit = "bytes" },
  { name = "payload", kind = "bytes", length = "size" },
  { name = "mode", kind = "i32", values = { -1 = "UNKNOWN", 0 = "NONE" } },
]

[[tracepoints]]
provider = "net"
name = "closed"
releases = { from = "v2", until = "v2" }
arguments = [{ name = "code", kind = "pointer", to = "i32" }]
"#;

#[test]
fn releases_have_their_tracepoints() {
    let contracts = parse(FILE).unwrap();
    let names: Vec<String> = contracts.iter().map(chainscope_usdt::Contract::name).collect();
    assert_eq!(names, ["example-v1", "example-v2", "example-v3"]);
    assert_eq!(contracts.iter().map(|of| of.tracepoints.len()).collect::<Vec<_>>(), [1, 2, 1]);
    assert_eq!(contracts.iter().map(|of| of.semaphores).collect::<Vec<_>>(), [Some(false), Some(true), Some(true)]);
    let message = contracts[0].tracepoint("net", "message").unwrap();
    assert_eq!(message.arguments[1].kind, Kind::Bytes(Some(Length::Argument(0))));
    assert_eq!(message.arguments[2].values[&-1], "UNKNOWN");
    let closed = contracts[1].tracepoint("net", "closed").unwrap();
    assert_eq!(closed.arguments[0].kind, Kind::Pointer(Some(Scalar::I32)));
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("title = \"Example\"", "titel = \"Example\"", "line 3, column 1"),
        ("kind = \"u64\"", "kind = \"u46\"", "line 13: unknown kind \"u46\""),
        ("unit = \"bytes\" }", "units = \"bytes\" }", "line 13, column 34"),
        ("length = \"size\"", "length = \"sise\"", "line 14: its length \"sise\" is no integer argument"),
        ("length = \"size\"", "length = \"mode\", max = 3", "line 14: an argument of kind \"bytes\" has no \"max\""),
        ("name = \"mode\"", "name = \"size\"", "line 15: a second argument is called \"size\""),
        ("-1 = \"UNKNOWN\"", "minus = \"UNKNOWN\"", "line 15: value \"minus\" is no integer"),
        ("until = \"v2\"", "until = \"v9\"", "line 21: \"v9\" is not one of the file's releases"),
        ("until = \"v2\"", "until = \"v1\"", "line 21: \"v1\" is before the first release"),
        ("name = \"closed\"", "name = \"message\"", "line 20: \"net\":\"message\" is in the file twice"),
        ("to = \"i32\"", "to = \"cstr\"", "line 22: unknown kind \"cstr\""),
        ("name = \"example\"", "name = \"Example\\u001b\"", "line 2: name \"Example\\u{1b}\""),
        ("arguments = [{", "argument = [{", "line 22, column 1"),
    ];
    for (from, to, message) in cases {
        let error = parse(&FILE.replacen(from, to, 1)).unwrap_err();
        assert!(error.to_string().contains(message), "{from} → {to}: {error}");
    }
    let many = format!(
        "arguments = [{}]",
        (0..65).map(|n| format!("{{ name = \"a{n}\", kind = \"u8\" }},")).collect::<String>()
    );
    let error =
        parse(&FILE.replace("arguments = [{ name = \"code\", kind = \"pointer\", to = \"i32\" }]", &many)).unwrap_err();
    assert_eq!(error, ContractError::Invalid { line: 20, message: "65 arguments are more than 64".to_owned() });
}

/// Numbers of the documents: eleven tracepoints of Moneyrocket, fifteen of Tapyrus, seven to twenty of Bitcoin Core.
#[test]
fn built_in_contracts_have_all_tracepoints() {
    let counts: Vec<(String, usize)> =
        built_in().iter().map(|contract| (contract.name(), contract.tracepoints.len())).collect();
    let expected = [
        ("rippled", 5),
        ("moneyrocket", 11),
        ("tapyrus", 15),
        ("bitcoin-core-v23", 7),
        ("bitcoin-core-v24", 11),
        ("bitcoin-core-v25", 15),
        ("bitcoin-core-v26", 15),
        ("bitcoin-core-v27", 15),
        ("bitcoin-core-v28", 15),
        ("bitcoin-core-v29", 20),
        ("bitcoin-core-v30", 20),
        ("bitcoin-core-v31", 20),
    ];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
}
