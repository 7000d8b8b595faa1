//! The page as Chromium shows it: from the width of a phone to that of a wall, light and dark.

use std::process::Command;

use chainscope_latency::html;
use chainscope_latency::report::Report;
use serde::Deserialize;
use serde_json::Value;

use crate::report::{comparison, history};

/// Least contrast of text that WCAG 2 (AA) asks for.
const MIN_CONTRAST: f64 = 4.5;

/// Least height of text, in pixels.
const MIN_HEIGHT: f64 = 8.0;

/// What is seen of a page.
#[derive(Debug, Deserialize)]
struct Seen {
    width: u32,
    /// By how much the content sticks out.
    overflow: i32,
    is_dark: bool,
    /// The least, and the text that has it.
    contrast: (f64, String),
    height: (f64, String),
    /// Pointer, value and text of each number, and whether it is shown.
    data: Vec<(String, String, String, bool)>,
}

fn look_at(page: &str, is_dark: bool) -> Vec<Seen> {
    let folder = tempfile::tempdir().unwrap();
    let wrapper = folder.path().join("wrapper.html");
    let escaped = page.replace('&', "&amp;").replace('<', "&lt;");
    let script = include_str!("browser.js");
    let text = format!(
        "<!doctype html><meta charset=utf-8><pre id=\"result\"></pre><template id=\"page\">{escaped}</template><script>{script}</script>"
    );
    std::fs::write(&wrapper, text).unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-extensions"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .args(is_dark.then_some("--force-dark-mode"))
        .args(["--virtual-time-budget=60000", "--dump-dom"])
        .arg(format!("file://{}", wrapper.display()))
        .env("HOME", folder.path())
        .output()
        .expect("chromium is missing: scripts/setup installs it");
    let document = String::from_utf8(output.stdout).unwrap();
    let result = document.split("<pre id=\"result\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let result = result.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let result = result.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&result).unwrap_or_else(|error| panic!("{error}: {result:?}"))
}

fn verify(report: &Report, name: &str) {
    let page = html::render(report);
    let json = serde_json::to_value(report).unwrap();
    for is_dark in [false, true] {
        let seen = look_at(&page, is_dark);
        assert_eq!(seen.iter().map(|seen| seen.width).collect::<Vec<_>>(), [390, 600, 820, 1280, 1920, 2560]);
        for seen in seen {
            let what = format!("{name}, {} px, dark: {is_dark}", seen.width);
            assert_eq!(seen.is_dark, is_dark, "{what}");
            assert_eq!(seen.overflow, 0, "{what}");
            assert!(seen.contrast.0 >= MIN_CONTRAST, "{what}: contrast {:?}", seen.contrast);
            assert!(seen.height.0 >= MIN_HEIGHT, "{what}: {:?}", seen.height);
            assert!(seen.data.len() > 50, "{what}: {} numbers", seen.data.len());
            for (pointer, value, text, is_shown) in &seen.data {
                let exact = json.pointer(pointer).and_then(Value::as_f64).unwrap();
                let value: f64 = value.parse().unwrap();
                assert!((exact - value).abs() <= exact.abs() * 1e-15, "{what}, {pointer}: {exact} {value}");
                assert!(*is_shown && text.chars().any(char::is_numeric), "{what}, {pointer}: {text:?}");
            }
        }
    }
}

#[test]
fn a_comparison_is_readable_on_every_screen() {
    verify(&comparison(), "comparison");
}

#[test]
fn a_history_is_readable_on_every_screen() {
    verify(&history(), "history");
}

#[test]
fn pages_refer_to_nothing_else() {
    for report in [comparison(), history()] {
        let page = html::render(&report);
        for mark in ["src=", "@import", "url(", "<link", "<iframe", "<object"] {
            assert!(!page.contains(mark), "{mark}");
        }
    }
}
