//! Scenarios whose outcome depends on how bytes are captured. `make test` runs them twice: in the default mode of this kernel, and with
//! `CHAINSCOPE_CAPTURE=syscall`, the fallback for kernels before 6.3.

mod bad_input;
mod dropped_record;
mod lives;
mod secrets;
