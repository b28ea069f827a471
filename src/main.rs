//! Command line of seckill-gate.

fn main() -> std::process::ExitCode {
    seckill_gate::cli::main()
}
