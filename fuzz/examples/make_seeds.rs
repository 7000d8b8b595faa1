//! Writes seeds for all targets, made from the test vectors, the message generator and a system binary: `make_seeds
//! VECTORS CORPUS`.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use chainscope_fuzz::SESSION;
use chainscope_tezos::{generate::Generator, message::PEER_KINDS};

fn main() -> io::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(vectors), Some(corpus)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: make_seeds VECTORS CORPUS"));
    };
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    let read = |path: &str| fs::read(vectors.join(Path::new(path)));
    let with_choice = |choice: usize, bytes: &[u8]| [&[choice as u8][..], bytes].concat();

    write("identity", "carthagenet", &read("tezos/carthagenet-2020/identity.json")?)?;
    write("identity", "synthetic", &read("tezos/synthetic-two-way/identity.json")?)?;

    write("handshake", "connection", &with_choice(0, &read("tezos/mainnet-bodies/connection.msg")?))?;
    write("handshake", "metadata", &with_choice(1, &[0, 0xff]))?;
    write("handshake", "ack", &with_choice(2, &[0]))?;
    write("handshake", "nack", &with_choice(2, b"\x01\0\x03\0\0\0\x12\0\0\0\x0e127.0.0.1:9832"))?;

    let mut generator = Generator::new(1);
    for (choice, (tag, kind)) in PEER_KINDS.iter().enumerate() {
        for number in 0..4 {
            write("message", &format!("{kind}-{number}"), &with_choice(choice, &generator.body(*tag)))?;
        }
    }
    for (direction, stream) in SESSION.streams.iter().enumerate() {
        write("chunks", &format!("stream-{direction}"), &with_choice(17, &stream[..4_000]))?;
    }
    // The handshake of both directions, in pieces.
    let mut opening = vec![1];
    for (direction, length) in [(0_u8, 105), (1, 105), (0, 39), (1, 39), (0, 200), (1, 200)] {
        let from = match length {
            105 => 0,
            39 => 105,
            _ => 144,
        };
        opening.extend([direction, 0, length as u8, 0]);
        opening.extend(&SESSION.streams[usize::from(direction)][from..from + length]);
    }
    write("opening", "handshake", &opening)?;
    write("opening", "http", &with_choice(0, b"\x01\0\x10\0GET / HTTP/1.1\r\n"))?;
    // Pieces of both directions and all sizes, with each operation of `script`.
    for operation in 0..8_u8 {
        for seed in 0..4_u64 {
            let mut generator = Generator::new(seed + 1);
            let mut steps = vec![seed as u8];
            for step in 0..60 {
                let what = if step % 7 == 3 { operation } else { 7 };
                let shift = generator.below(8) as u8;
                let direction = generator.below(2) as u8;
                steps.extend([shift << 4 | what << 1 | direction, generator.below(256) as u8]);
                steps.extend(generator.bytes(2));
            }
            write("conversation", &format!("operation-{operation}-{seed}"), &steps[1..])?;
            write("resume", &format!("operation-{operation}-{seed}"), &steps)?;
        }
    }
    // A system binary, small enough for the fuzzer.
    if let Ok(program) = fs::read("/usr/bin/true") {
        write("unwind", "true", &program)?;
    }
    Ok(())
}
