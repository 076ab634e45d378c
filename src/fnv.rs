//! FNV-1a, 128 bits: a cheap identity of bytes that is the same in every version. It tells things apart; it is no
//! defence against forgery.

/// The hash of the bytes added so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    /// The hash of `bytes`.
    pub fn of(bytes: impl IntoIterator<Item = u8>) -> Fnv {
        let mut h = Fnv::default();
        h.add(bytes);
        h
    }
    /// Adds bytes.
    pub fn add(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for b in bytes {
            self.0 = (self.0 ^ u128::from(b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    /// The hash, little-endian.
    pub fn bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
    /// The hash as 32 hex digits.
    pub fn hex(self) -> String {
        format!("{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches another constant: fingerprints and prompt hashes are compared across versions. The values are the
    /// published offset basis and the hash of "a".
    #[test]
    fn the_published_values() {
        assert_eq!(Fnv::default().hex(), "6c62272e07bb014262b821756295c58d");
        assert_eq!(Fnv::of(*b"a").hex(), "d228cb696f1a8caf78912b704e4a8964");
        let mut parts = Fnv::of(*b"ab");
        parts.add(*b"c");
        assert_eq!(parts, Fnv::of(*b"abc"));
    }
}
