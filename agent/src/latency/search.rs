//! Finds the functions of a plan in the program, and where they can be probed.

use std::fs::File;

use chainscope_functions::{Pattern, ProbeError, ReadCache};

use super::{
    PlannedFunction, Program, RecordError, Skipped, SpanRequest,
    describe::{Probed, between, call},
};

/// Finds functions of a program.
pub(super) struct Search<'a> {
    program: &'a Program,
    data: ReadCache<File>,
    debug: Option<ReadCache<File>>,
    max: usize,
    pub(super) skipped: Vec<Skipped>,
}

impl<'a> Search<'a> {
    pub(super) fn new(program: &'a Program, max: usize) -> Result<Self, RecordError> {
        let copy = |file: &File| file.try_clone().map(ReadCache::new);
        let fail = |cause| RecordError::File { path: program.path.clone(), cause };
        let data = copy(&program.file).map_err(fail)?;
        let debug = program.debug.as_ref().map(copy).transpose().map_err(fail)?;
        Ok(Self { program, data, debug, max, skipped: Vec::new() })
    }

    /// What a request asks for: a span, or one for each function.
    pub(super) fn span(
        &mut self,
        request: &SpanRequest,
        has_return_probes: bool,
    ) -> Result<Vec<PlannedFunction>, RecordError> {
        let entries = self.find(&request.entry)?;
        let Some(exit) = &request.exit else {
            let count = entries.len();
            let calls = entries.iter().map(|entry| {
                let is_coroutine = self.program.functions.is_coroutine(&entry.0);
                call(request, entry, count, is_coroutine, has_return_probes)
            });
            return Ok(calls.collect());
        };
        let exits = self.find(exit)?;
        if entries.is_empty() || exits.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![between(request, exit, &entries, &exits, has_return_probes)])
    }

    /// The functions of a pattern that can be probed; the others are skipped.
    pub(super) fn find(&mut self, pattern: &Pattern) -> Result<Vec<Probed>, RecordError> {
        let functions = &self.program.functions;
        let found = functions.find(pattern, self.max, Some(self.debug.as_ref().unwrap_or(&self.data)))?;
        let mut probed = Vec::new();
        for function in found {
            let parts = function.parts.iter().map(|part| functions.probes(&self.data, &function, *part));
            match parts.collect::<Result<Vec<_>, ProbeError>>() {
                Ok(probes) => probed.push((function, probes)),
                Err(reason) => {
                    self.skipped.push(Skipped { function: function.name, reason: reason.to_string() });
                }
            }
        }
        Ok(probed)
    }
}
