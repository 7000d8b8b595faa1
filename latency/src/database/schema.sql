CREATE TABLE runs (
  number INTEGER PRIMARY KEY,       -- order of recording or import
  id TEXT NOT NULL UNIQUE,          -- 32 hexadecimal digits
  node TEXT,
  pid INTEGER NOT NULL,
  executable TEXT NOT NULL,
  build_id TEXT,
  version TEXT,
  git_commit TEXT,
  host TEXT NOT NULL,
  kernel TEXT NOT NULL,
  start_ns INTEGER NOT NULL,        -- nanoseconds since 1970
  end_ns INTEGER,                   -- NULL: running, or killed
  block_ns INTEGER NOT NULL,
  resolution TEXT NOT NULL          -- log_linear | powers_of_two
);
CREATE TABLE tags (run INTEGER NOT NULL REFERENCES runs, tag TEXT NOT NULL, PRIMARY KEY (run, tag)) WITHOUT ROWID;
CREATE TABLE functions (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL REFERENCES runs,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  entry_pattern TEXT NOT NULL,
  entry_symbols TEXT NOT NULL,      -- JSON array
  exit_pattern TEXT NOT NULL,
  exit_symbols TEXT NOT NULL,
  UNIQUE (run, position)
);
CREATE TABLE blocks (
  id INTEGER PRIMARY KEY,
  function INTEGER NOT NULL REFERENCES functions,
  start_ns INTEGER NOT NULL,
  length_ns INTEGER NOT NULL,
  count INTEGER NOT NULL,           -- spans
  sum_ns INTEGER NOT NULL,
  min_ns INTEGER,
  max_ns INTEGER,
  unended INTEGER NOT NULL
);
CREATE INDEX blocks_of_function ON blocks (function, start_ns);
CREATE TABLE buckets (block INTEGER NOT NULL REFERENCES blocks, bucket INTEGER NOT NULL, least_ns INTEGER NOT NULL,
  count INTEGER NOT NULL, PRIMARY KEY (block, bucket)) WITHOUT ROWID;
CREATE TABLE returns (block INTEGER NOT NULL REFERENCES blocks, code INTEGER NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (block, code)) WITHOUT ROWID;
CREATE TABLE losses (block INTEGER NOT NULL REFERENCES blocks, reason TEXT NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (block, reason)) WITHOUT ROWID;
CREATE TABLE transactions (
  run INTEGER NOT NULL REFERENCES runs,
  id TEXT NOT NULL,                 -- 64 hexadecimal digits, upper case
  type INTEGER NOT NULL,
  result INTEGER NOT NULL,
  duration_ns INTEGER NOT NULL,
  time_ns INTEGER NOT NULL
);
CREATE INDEX transactions_by_id ON transactions (id);
CREATE INDEX transactions_by_duration ON transactions (run, duration_ns);
