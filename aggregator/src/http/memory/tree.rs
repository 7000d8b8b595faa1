//! `/v1/tree`: memory by stack, as nested JSON.

use std::{collections::BTreeMap, io::Write as _, sync::Arc};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use chainscope_profile::{Kind, Kinds, Measure, ProfileData, Tree, TreeOptions};
use chainscope_proto::v1::MemoryMapping;
use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::{sync::OwnedSemaphorePermit, task::JoinHandle};
use utoipa::{IntoParams, ToSchema};

use super::{
    super::{
        app::AuthorizedNode,
        conditional::IfNoneMatch,
        params::{NodeParameters, Params, boolean, number},
        problem::Problem,
        response,
    },
    selection::{DEFAULT_THRESHOLD, MemoryParameters, Selected},
    tree_json::TreeWriter,
};
use crate::{access::permission::ReadMemory, json};

/// Bytes of a response that are made before it begins.
const HEAD_BYTES: usize = 4 << 20;

/// How the tree is shown.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct TreeParameters {
    /// Minimum size of a node, in kibibytes; smaller children are summed as the child `underThreshold`. Default: 256.
    #[serde(deserialize_with = "number")]
    threshold: Option<u64>,
    /// `true`: children of the root are outermost frames (entry points, thread starts) instead of innermost ones.
    /// Default: false.
    #[serde(deserialize_with = "boolean")]
    reverse: Option<bool>,
    /// `true`: four totals instead of the tree; `threshold` and `reverse` have no effect.
    #[serde(deserialize_with = "boolean")]
    short: Option<bool>,
}

/// Memory by stack, in kibibytes. The root has no name. The children of a node add up to it; a node with none holds all of it
/// itself.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TreeView {
    /// Absent of the root.
    name: Option<NameView>,
    /// What is held by stacks with this beginning; with `since` the difference.
    value: i64,
    /// The part of it that is page cache.
    cache_value: i64,
    /// Absent where the name is a text.
    #[schema(no_recursion, required = false)]
    frames: Vec<TreeView>,
    /// Of `[resident before attach]` only: how it was distributed then.
    at_attach: Option<Vec<MappingView<'static>>>,
    /// Of `[resident before attach]` only: how what is left of its anonymous part is distributed, page by page. Absent where
    /// the agent cannot read page frame numbers, which needs `CAP_SYS_ADMIN`.
    now: Option<Vec<MappingView<'static>>>,
}

/// What holds memory.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what `tree_json` writes")]
pub(crate) enum NameView {
    /// A frame.
    Frame(FrameView),
    /// What is none: `underThreshold`, `unknown`, `[resident before attach]`, `[unattributed]`.
    Other(String),
}

/// A frame.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
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

/// A response: the tree, or with `short` its totals.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what `tree` responds with")]
pub(crate) enum TreeResponse {
    /// Without `short`.
    Tree(TreeView),
    /// With `short=true`.
    Short(ShortReport),
}

/// Which code holds the node's memory.
#[utoipa::path(get, path = "/v1/tree", params(NodeParameters, TreeParameters, MemoryParameters), responses(
    (status = 200, description = "The tree, in kibibytes; empty while nothing is known.", body = TreeResponse),
    (status = 304, description = "The client has it: `If-None-Match` lists its `ETag`, and nothing has changed."),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the tree is too large.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node, process or snapshot.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn tree(
    Params(TreeParameters { threshold, reverse, short }): Params<TreeParameters>,
    Params(parameters): Params<MemoryParameters>,
    known: IfNoneMatch,
    node: AuthorizedNode<ReadMemory>,
) -> Result<Response, Problem> {
    if short.unwrap_or(false) {
        let report = parameters.make(known, &node, |_, selected, _| Ok(short_report(&selected))).await?;
        return report.respond(|report| Ok(response::json_of(&report)));
    }
    let made = parameters
        .make(known, &node, move |parameters, selected, is_exhausted| {
            let is_compared = parameters.is_compared();
            let options = TreeOptions {
                reverse: reverse.unwrap_or(false),
                threshold: threshold.unwrap_or(DEFAULT_THRESHOLD),
                kinds: parameters.kinds(),
                measure: if is_compared { Measure::Growth } else { Measure::Now },
            };
            let tree = Tree::new(&selected.stacks, &options, is_exhausted)?;
            let before = if is_compared { Vec::new() } else { before(&selected.now, options.kinds) };
            let mut text = TreeWriter::new(tree, before);
            let mut head = Vec::new();
            let mut bytes = 0;
            while bytes < HEAD_BYTES {
                let Some(block) = text.block() else { return Ok((head, None)) };
                bytes += block.len();
                head.push(block);
            }
            Ok((head, Some(text)))
        })
        .await?;
    made.respond(|(head, rest)| {
        let bytes = head.iter().map(Bytes::len).sum::<usize>() + rest.as_ref().map_or(0, TreeWriter::memory);
        let permit = node.app().in_flight().hold(bytes)?;
        Ok(response::json(body(head, rest, permit)))
    })
}

/// The blocks that are there, then the others: one is made ahead, while the client takes the one before. A failure aborts the
/// response. The permit is held to the end.
fn body(head: Vec<Bytes>, rest: Option<TreeWriter>, permit: OwnedSemaphorePermit) -> Body {
    let rest = stream::unfold((rest.map(next_block), permit), |(next, permit)| async move {
        match next?.await {
            Ok((block, rest)) => Some((Ok(block?), (Some(next_block(rest)), permit))),
            Err(error) => Some((Err(error), (None, permit))),
        }
    });
    Body::from_stream(stream::iter(head).map(Ok).chain(rest))
}

/// Begins to make the next block.
fn next_block(mut text: TreeWriter) -> JoinHandle<(Option<Bytes>, TreeWriter)> {
    tokio::task::spawn_blocking(move || (text.block(), text))
}

fn short_report(selected: &Selected) -> ShortReport {
    let (rest, _) = selected.stacks.non_stack();
    let sum = |kind: Kind| {
        let held = selected.now.iter().map(|data| data.attributed()[kind.index()]).fold(0, u64::saturating_add);
        let beside = rest.before_attach[kind.index()].saturating_add(rest.unattributed[kind.index()].max(0));
        held.saturating_add_signed(beside)
    };
    let (anon, cache) = (sum(Kind::Anon), sum(Kind::Cache));
    let control = selected.now.iter().map(|data| data.kib(data.totals.control_anon)).fold(0, u64::saturating_add);
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
