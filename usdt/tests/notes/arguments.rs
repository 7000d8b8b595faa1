//! Forms of argument specs.

use chainscope_usdt::{Address, Argument, Base, Class, Index, Operand, Register, Scope, Shape, Unsupported};
use proptest::prelude::*;

const LOCATION: u64 = 0x1000;

/// Parses in an image of x86-64 with the symbol `g` at 0x4000 and twice `twin`.
fn parse(text: &str, is_fixed: bool) -> Vec<Argument> {
    let symbol = |name: &str| match name {
        "g" => Ok(0x4000),
        "twin" => Err(Unsupported::AmbiguousSymbol(name.to_owned())),
        other => Err(Unsupported::NoSymbol(other.to_owned())),
    };
    Argument::parse_all(text, Scope { machine: 62, location: LOCATION, is_fixed, symbol: &symbol })
}

fn one(text: &str) -> Argument {
    let [argument] = parse(text, false).try_into().expect("one argument");
    argument
}

fn operand(text: &str) -> Result<Operand, Unsupported> {
    one(text).operand
}

fn register(register: Register) -> Result<Operand, Unsupported> {
    Ok(Operand::Register { register, shift: 0 })
}

fn memory(base: Option<Base>, index: Option<(Register, u8)>, displacement: i64) -> Result<Operand, Unsupported> {
    let index = index.map(|(register, scale)| Index { register, scale });
    Ok(Operand::Memory(Address { base, index, displacement }))
}

fn at(register: Register, displacement: i64) -> Result<Operand, Unsupported> {
    memory(Some(Base::Register(register)), None, displacement)
}

#[test]
fn sizes_and_classes() {
    let shape = |text: &str| one(text).shape.map(|Shape { size, class }| (size, class));
    assert_eq!(shape("-8@%rbx"), Some((8, Class::Signed)));
    assert_eq!(shape("4@%eax"), Some((4, Class::Unsigned)));
    assert_eq!(shape("2@%ax"), Some((2, Class::Unsigned)));
    assert_eq!(shape("-1@%al"), Some((1, Class::Signed)));
    assert_eq!(shape("8f@%rcx"), Some((8, Class::Float)));
    assert_eq!(shape("-4f@%eax"), Some((4, Class::Float)));
    for text in ["@%rax", "%rax", "3@%rax", "16@%rax", "--8@%rax", "8ff@%rax", "-@%rax", "x"] {
        assert_eq!((shape(text), operand(text)), (None, Err(Unsupported::Size)), "{text}");
    }
}

#[test]
fn registers_of_all_widths() {
    assert_eq!(operand("-8@%rbx"), register(Register::Rbx));
    assert_eq!(operand("4@%r12d"), register(Register::R12));
    assert_eq!(operand("2@%si"), register(Register::Rsi));
    assert_eq!(operand("1@%r13b"), register(Register::R13));
    assert_eq!(operand("1@%spl"), register(Register::Rsp));
    assert_eq!(operand("1@%ch"), Ok(Operand::Register { register: Register::Rcx, shift: 8 }));
    assert_eq!(operand("-4@%rax"), register(Register::Rax), "the low bytes of a wider register");
    for text in ["8@%eax", "4@%ax", "2@%ah", "8f@%xmm0", "8@%rip", "8@%fs", "8@%", "8@%RAX", "8@%st(0)"] {
        assert!(matches!(operand(text), Err(Unsupported::Register(_))), "{text}: {:?}", operand(text));
    }
}

#[test]
fn memory_operands() {
    assert_eq!(operand("8@(%rsp)"), at(Register::Rsp, 0));
    assert_eq!(operand("-4@12(%rsp)"), at(Register::Rsp, 12));
    assert_eq!(operand("8f@-8(%rbp)"), at(Register::Rbp, -8));
    assert_eq!(operand("8@0x10(%rbp)"), at(Register::Rbp, 16));
    let rdx = Some(Base::Register(Register::Rdx));
    assert_eq!(operand("-4@4(%rdx,%rax,4)"), memory(rdx, Some((Register::Rax, 4)), 4));
    assert_eq!(operand("-1@(%rdx,%rcx)"), memory(rdx, Some((Register::Rcx, 1)), 0));
    assert_eq!(operand("8@-8(,%rax,8)"), memory(None, Some((Register::Rax, 8)), -8));
    assert_eq!(operand("8@4096"), memory(None, None, 4096));
    for text in ["8@", "8@(", "8@()", "8@(%rax", "8@(%rax,%rbx,3)", "8@(%rax,%rbx,1,1)", "8@8(%rip)", "8@1x(%rax)"] {
        assert_eq!(operand(text), Err(Unsupported::Operand), "{text}");
    }
    for text in ["8@(%eax)", "8@(rax)", "8@(%rax,)", "8@%fs:8(%rax)"] {
        assert!(matches!(operand(text), Err(Unsupported::Register(_))), "{text}: {:?}", operand(text));
    }
    assert_eq!(operand("8@9223372036854775808(%rax)"), Err(Unsupported::Number));
    assert_eq!(operand("8@99999999999999999999(%rax)"), Err(Unsupported::Number));
}

#[test]
fn constants() {
    assert_eq!(operand("8@$100000"), Ok(Operand::Constant(100_000)));
    assert_eq!(operand("-8@$-7"), Ok(Operand::Constant(-7)));
    assert_eq!(operand("8@$0xff"), Ok(Operand::Constant(255)));
    assert_eq!(operand("8@$18446744073709551615"), Ok(Operand::Constant(-1)));
    assert_eq!(operand("-8@$-9223372036854775808"), Ok(Operand::Constant(i64::MIN)));
    assert_eq!(operand("-8@$-9223372036854775809"), Err(Unsupported::Number));
}

#[test]
fn symbols_are_relative_to_the_location_or_absolute() {
    let displacement = 0x4000 - LOCATION as i64;
    let relative = |offset| memory(Some(Base::Location), None, displacement + offset);
    assert_eq!(operand("-8@g(%rip)"), relative(0));
    assert_eq!(operand("-8@g+8(%rip)"), relative(8));
    assert_eq!(operand("-4@52+g(%rip)"), relative(52));
    assert_eq!(operand("-4@g-0x10+1(%rip)"), relative(-15));
    assert_eq!(operand("8@h(%rip)"), Err(Unsupported::NoSymbol("h".to_owned())));
    assert_eq!(operand("8@twin(%rip)"), Err(Unsupported::AmbiguousSymbol("twin".to_owned())));
    for text in ["8@g+g(%rip)", "8@-g(%rip)", "8@g@GOTPCREL(%rip)", "8@g+(%rip)", "8@%fs:g@tpoff"] {
        assert!(operand(text).is_err(), "{text}");
    }
    let fixed = |text: &str| parse(text, true).remove(0).operand;
    assert_eq!(fixed("8@$g+1"), Ok(Operand::Constant(0x4001)));
    assert_eq!(fixed("8@g"), memory(None, None, 0x4000));
    assert_eq!(fixed("-4@g(,%rax,4)"), memory(None, Some((Register::Rax, 4)), 0x4000));
    assert_eq!(fixed("-4@g+4(%rbx)"), at(Register::Rbx, 0x4004));
    for text in ["8@$g", "8@g", "-4@g(,%rax,4)"] {
        assert_eq!(operand(text), Err(Unsupported::Relocated("g".to_owned())), "{text}");
    }
}

#[test]
fn other_architectures_keep_the_text_and_the_size() {
    let text = "8@x1 -4@[sp, 128] 2@[x22, 20] -4@[x22] -1@[x0, x1] 8@[x0, #:lo12:.LANCHOR0] -8@v0";
    let symbol = |_: &str| Ok(0);
    let found = Argument::parse_all(text, Scope { machine: 183, location: 0, is_fixed: false, symbol: &symbol });
    let raw: Vec<&str> = found.iter().map(|argument| argument.raw.as_str()).collect();
    assert_eq!(
        raw,
        ["8@x1", "-4@[sp, 128]", "2@[x22, 20]", "-4@[x22]", "-1@[x0, x1]", "8@[x0, #:lo12:.LANCHOR0]", "-8@v0"]
    );
    assert!(found.iter().all(|argument| argument.operand == Err(Unsupported::Machine(183))));
    assert_eq!(found[1].shape, Some(Shape { size: 4, class: Class::Signed }));
    // The same texts in an image of x86-64.
    assert!(parse(text, true).iter().all(|argument| argument.operand.is_err()));
}

proptest! {
    /// An operand as the compilers write it is read back.
    #[test]
    fn written_operands_are_read_back(
        base in proptest::option::of(0_usize..16),
        index in proptest::option::of((0_usize..16, prop::sample::select(vec![1_u8, 2, 4, 8]))),
        displacement in any::<i32>(),
    ) {
        prop_assume!(base.is_some() || index.is_some());
        let base = base.map(|number| REGISTERS[number]);
        let index = index.map(|(number, scale)| (REGISTERS[number], scale));
        let inner = match index {
            None => format!("%{}", base.map_or("", Register::name)),
            Some((register, scale)) => {
                let base = base.map(|base| format!("%{}", base.name())).unwrap_or_default();
                format!("{base},%{},{scale}", register.name())
            }
        };
        let text = format!("8@{displacement}({inner})");
        prop_assert_eq!(operand(&text), memory(base.map(Base::Register), index, i64::from(displacement)), "{}", text);
    }

    /// Any text is split without loss, apart from the white space between arguments.
    #[test]
    fn any_text_is_kept(text in "[-0-9@$%()\\[\\],+a-z. ]{0,80}") {
        let raw: String = parse(&text, true).into_iter().map(|argument| argument.raw).collect();
        let visible = |text: &str| text.split_whitespace().collect::<String>();
        prop_assert_eq!(visible(&raw), visible(&text));
    }

    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        parse(&text, true);
        parse(&text, false);
    }
}

const REGISTERS: [Register; 16] = [
    Register::Rax,
    Register::Rbx,
    Register::Rcx,
    Register::Rdx,
    Register::Rsi,
    Register::Rdi,
    Register::Rbp,
    Register::Rsp,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
