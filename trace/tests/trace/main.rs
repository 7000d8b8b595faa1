//! Views compared with the output of the example scripts of Bitcoin Core and Tapyrus; recordings.

mod archive;
mod blocks;
mod hostile;
mod relay;
mod scripts;
mod select;
mod support;
