//! `/v1/tree`.

use std::{collections::BTreeMap, convert::Infallible, io::Write as _, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::State,
    response::Response,
};
use chainscope_profile::{Kind, Kinds, Measure, ProfileData, Tree, TreeOptions};
use chainscope_proto::v1::MemoryMapping;
use futures::{StreamExt as _, stream};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    super::{
        app::{App, Asked},
        json, list,
        problem::Problem,
    },
    ask::{Ask, Found, MemoryParameters},
    text::TreeText,
};

/// Bytes of an answer that are made before it begins.
const AT_ONCE: usize = 4 << 20;

/// How the tree is shown.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(super) struct TreeParameters {
    /// Kibibytes that a node holds at least; the others of a parent are its child `underThreshold`. [default: 256]
    threshold: Option<u64>,
    /// `true`: children of the root are outermost frames (entry points, thread starts) instead of innermost ones.
    /// [default: false]
    reverse: Option<bool>,
    /// `true`: four totals instead of the tree; other parameters are not looked at.
    short: Option<bool>,
}

/// Memory by stack, in kibibytes. The root has no name. The children of a node add up to it; a node with none holds all of it
/// itself.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)] // written by hand; this is its documentation
pub(crate) struct TreeView {
    /// A frame, or the name of what is none: `underThreshold`, `unknown`, `[resident before attach]`, `[unattributed]`.
    #[schema(value_type = Option<FrameView>)]
    name: Option<FrameView>,
    /// What is held by stacks with this beginning; with `since` the difference.
    value: i64,
    /// The part of it that is page cache.
    cache_value: i64,
    /// Absent where the name is a text.
    #[schema(no_recursion)]
    frames: Vec<TreeView>,
    /// Of `[resident before attach]` only: how it was distributed then.
    at_attach: Option<Vec<MappingView<'static>>>,
    /// Of `[resident before attach]` only: how what is left of its anonymous part is distributed, page by page. Absent where
    /// the agent is not told page frames, for which it needs `CAP_SYS_ADMIN`.
    now: Option<Vec<MappingView<'static>>>,
}

/// A frame.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)] // written by hand; this is its documentation
pub(crate) struct FrameView {
    /// File offset of the return address, the last 32 bits of it in hexadecimal digits.
    #[schema(example = "0001297a")]
    offset: String,
    /// Base name of the file; a text in brackets where there is none.
    #[schema(example = "light-node")]
    executable: String,
    /// Demangled; null if no symbol covers the place.
    function_name: Option<String>,
    /// `nodeRust`, `nodeCpp` or `systemLib`.
    #[schema(example = "nodeRust")]
    function_category: String,
    /// Inlined into its caller; absent if not.
    inlined: Option<bool>,
    /// The file was deleted or replaced; absent if not.
    deleted: Option<bool>,
}

/// Totals, in kibibytes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShortReport {
    /// Anonymous memory and page cache.
    total: u64,
    cache: u64,
    anon: u64,
    /// `RssAnon` as the kernel counts it.
    system_report_anon: u64,
}

/// Which code holds the node's memory.
#[utoipa::path(get, path = "/v1/tree", params(TreeParameters, MemoryParameters), responses(
    (status = 200, description = "The tree, in kibibytes; empty while nothing is known.", body = TreeView),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the tree is too large.", body = Problem),
    (status = 404, description = "There is no such node, process or snapshot.", body = Problem),
    (status = 503, description = "Too much is going on.", body = Problem),
))]
pub(crate) async fn tree(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let form = asked.form();
    let is_short = form.boolean("short")?.unwrap_or(false);
    let ask = Ask::read(&form)?;
    if is_short {
        let report = ask.answer(&app, &asked, |_, found, _| Ok(short(&found))).await?;
        let mut text = Vec::new();
        // Writing numbers to memory does not fail.
        let _ = json::write(&mut text, &report);
        return Ok(list::json(Body::from(text)));
    }
    let (head, rest) = ask
        .answer(&app, &asked, |ask, found, is_over| {
            let options = TreeOptions {
                reverse: ask.reverse.unwrap_or(false),
                threshold: ask.threshold,
                kinds: ask.kinds,
                measure: if ask.is_compared() { Measure::Growth } else { Measure::Now },
            };
            let tree = Tree::new(&found.stacks, &options, is_over)?;
            let before = if ask.is_compared() { Vec::new() } else { before(&found.now, ask.kinds) };
            let mut text = TreeText::new(tree, before);
            let mut head = Vec::new();
            let mut bytes = 0;
            while bytes < AT_ONCE
                && let Some(block) = text.block()
            {
                bytes += block.len();
                head.push(block);
            }
            Ok((head, text))
        })
        .await?;
    Ok(list::json(body(head, rest)))
}

/// The blocks that are there, then the others as the client takes them.
fn body(head: Vec<Bytes>, rest: TreeText) -> Body {
    let rest = stream::unfold(rest, |mut text| async move { text.block().map(|block| (block, text)) });
    Body::from_stream(stream::iter(head).chain(rest).map(Ok::<_, Infallible>))
}

fn short(found: &Found) -> ShortReport {
    let (rest, _) = found.stacks.non_stack();
    let sum = |kind: Kind| {
        let held = found.now.iter().map(|data| data.attributed()[kind.index()]).fold(0, u64::saturating_add);
        let beside = rest.before_attach[kind.index()].saturating_add(rest.unattributed[kind.index()].max(0));
        held.saturating_add_signed(beside)
    };
    let (anon, cache) = (sum(Kind::Anon), sum(Kind::Cache));
    let control = found.now.iter().map(|data| data.kib(data.totals.control_anon)).fold(0, u64::saturating_add);
    ShortReport { total: anon.saturating_add(cache), cache, anon, system_report_anon: control }
}

/// What was resident before attach, by mapping: `atAttach` as it was then, `now` what is left where that is known page by
/// page. Members of JSON, each behind a comma; lists, greatest first; none that is empty.
fn before(now: &[Arc<ProfileData>], kinds: Kinds) -> Vec<u8> {
    let mut text = Vec::new();
    let lists: [(&str, List); 2] =
        [("atAttach", |data| &data.totals.at_attach), ("now", |data| &data.totals.before_now)];
    for (name, list) in lists {
        let rows = by_mapping(now, kinds, list);
        if !rows.is_empty() {
            // Writing strings and numbers to memory does not fail.
            let _ = write!(text, ",\"{name}\":");
            let _ = json::write(&mut text, &rows);
        }
    }
    text
}

/// A kind of memory in mappings of the same name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MappingView<'a> {
    /// A file, or `[heap]`, `[stack]`, `[anon]`.
    #[schema(example = "[heap]")]
    mapping: &'a str,
    /// `anon` or `cache`.
    #[schema(example = "anon")]
    kind: &'static str,
    /// In kibibytes.
    value: u64,
}

type List = fn(&ProfileData) -> &[MemoryMapping];

fn by_mapping(now: &[Arc<ProfileData>], kinds: Kinds, list: List) -> Vec<MappingView<'_>> {
    let mut sums: BTreeMap<(&str, usize), u64> = BTreeMap::new();
    for (data, each) in now.iter().flat_map(|data| list(data).iter().map(move |each| (data, each))) {
        let Some(kind) = Kind::of_wire(each.kind).filter(|kind| kinds.has(*kind)) else { continue };
        let sum = sums.entry((&each.mapping, kind.index())).or_default();
        *sum = sum.saturating_add(data.kib(each.pages));
    }
    let name = |kind: usize| Kind::ALL.get(kind).map_or("", |kind| kind.name());
    let rows = sums.into_iter().map(|((mapping, kind), value)| MappingView { mapping, kind: name(kind), value });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.value));
    rows
}
