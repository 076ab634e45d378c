//! Parse, run, exit code. Nothing else.

fn main() {
    println!("dsv4");
}
