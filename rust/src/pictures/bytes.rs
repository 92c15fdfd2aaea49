//! Numbers and parts of a file that may end anywhere.

use super::{Read, TRUNCATED};

/// Reads a file from front to back.
pub struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub fn new(all: &'a [u8]) -> Self {
        Bytes { all, at: 0 }
    }
    pub fn at(&self) -> usize {
        self.at
    }
    pub fn seek(&mut self, at: usize) {
        self.at = at.min(self.all.len());
    }
    pub fn rest(&self) -> &'a [u8] {
        &self.all[self.at..]
    }
    pub fn take(&mut self, size: usize) -> Read<&'a [u8]> {
        let part = self.rest().get(..size).ok_or(TRUNCATED)?;
        self.at += size;
        Ok(part)
    }
    pub fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }
}

pub fn u16_le(bytes: &[u8], at: usize) -> Read<u16> {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(TRUNCATED)?;
    Ok(u16::from_le_bytes(*part))
}
pub fn u32_le(bytes: &[u8], at: usize) -> Read<u32> {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(TRUNCATED)?;
    Ok(u32::from_le_bytes(*part))
}
pub fn u16_be(bytes: &[u8], at: usize) -> Read<u16> {
    Ok(u16_le(bytes, at)?.swap_bytes())
}
pub fn u32_be(bytes: &[u8], at: usize) -> Read<u32> {
    Ok(u32_le(bytes, at)?.swap_bytes())
}
