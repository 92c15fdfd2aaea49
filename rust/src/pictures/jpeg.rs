//! JPEG by libjpeg-turbo's decoder, with exact IDCT and smooth upsampling: the numbers of Pillow.

use std::ffi::{c_int, c_uchar, c_ulong, c_void};

use mozjpeg_sys as _; // links TurboJPEG's functions, which it does not declare

use super::bytes::{u16_be, Bytes};
use super::{blank, exif, Broken, Header, Mode, Picture, Read, TRUNCATED};

extern "C" {
    fn tjInitDecompress() -> *mut c_void;
    fn tjDestroy(handle: *mut c_void) -> c_int;
    fn tjGetErrorCode(handle: *mut c_void) -> c_int;
    fn tjGetErrorStr2(handle: *mut c_void) -> *const std::ffi::c_char;
    fn tjDecompress2(
        handle: *mut c_void,
        jpeg: *const c_uchar,
        jpeg_size: c_ulong,
        pixels: *mut c_uchar,
        width: c_int,
        pitch: c_int,
        height: c_int,
        pixel_format: c_int,
        flags: c_int,
    ) -> c_int;
}
const TJPF_RGB: c_int = 0;
const TJPF_GRAY: c_int = 6;
const TJPF_CMYK: c_int = 11;
const TJERR_WARNING: c_int = 0;
/// Ends at 500 scans: a small file could otherwise ask for unlimited work.
const TJFLAG_LIMITSCANS: c_int = 32768;

struct Frame {
    width: u32,
    height: u32,
    mode: Mode,
    exif: Vec<u8>,
    xmp: Option<Vec<u8>>,
}

/// Reads the segments before the first scan. Returns what they say, and where the scan begins.
fn frame_of(bytes: &[u8]) -> Read<(Frame, usize)> {
    let mut frame =
        Frame { width: 0, height: 0, mode: Mode::Rgb, exif: Vec::new(), xmp: None };
    let mut reader = Bytes::new(bytes);
    reader.seek(2);
    let mut has_frame = false;
    loop {
        let Some(marker) = next_marker(&mut reader) else { return Err(TRUNCATED.into()) };
        if matches!(marker, 0x01 | 0xD0..=0xD8) {
            continue;
        }
        if marker == 0xD9 {
            return Err("it has no scan".into());
        }
        let begin = reader.at() - 2;
        let segment = segment(&mut reader)?;
        match marker {
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                let [bits, y1, y0, x1, x0, layers, ..] = *segment else {
                    return Err(TRUNCATED.into());
                };
                if bits != 8 {
                    return Err(format!("it has {bits} bits a sample; only 8 can be read").into());
                }
                frame.width = u16::from_be_bytes([x1, x0]) as u32;
                frame.height = u16::from_be_bytes([y1, y0]) as u32;
                frame.mode = match layers {
                    1 => Mode::Grey,
                    3 => Mode::Rgb,
                    4 => Mode::Cmyk,
                    _ => return Err(format!("it has {layers} components").into()),
                };
                if has_frame {
                    return Err("it has two frame headers".into());
                }
                has_frame = true;
            }
            0xDA if has_frame => return Ok((frame, begin)),
            0xDA => return Err("it has no frame header".into()),
            0xE1 => {
                if let Some(tiff) = segment.strip_prefix(b"Exif\0\0") {
                    frame.exif.extend_from_slice(tiff);
                } else if let Some(xmp) = segment.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0") {
                    frame.xmp = Some(xmp.to_vec());
                }
            }
            _ => {}
        }
    }
}

/// Skips what is no marker.
fn next_marker(reader: &mut Bytes) -> Option<u8> {
    loop {
        let rest = reader.rest();
        let at = rest.iter().position(|&byte| byte == 0xFF)?;
        let marker = *rest.get(at + 1)?;
        let is_fill = marker == 0xFF;
        reader.seek(reader.at() + at + if is_fill { 1 } else { 2 });
        if !is_fill && marker != 0 {
            return Some(marker);
        }
    }
}

fn segment<'a>(reader: &mut Bytes<'a>) -> Read<&'a [u8]> {
    let size = u16_be(reader.take(2)?, 0)? as usize;
    reader.take(size.checked_sub(2).ok_or("a segment has no length")?)
}

/// Whether the end marker is there. The decoder fills in what is missing, but Pillow refuses it.
fn is_whole(bytes: &[u8], scan: usize) -> bool {
    let mut reader = Bytes::new(bytes);
    reader.seek(scan);
    while let Some(marker) = next_marker(&mut reader) {
        match marker {
            0xD9 => return true,
            0x01 | 0xD0..=0xD8 => {}
            _ => {
                if segment(&mut reader).is_err() {
                    return false;
                }
            }
        }
    }
    false
}

pub fn header(bytes: &[u8]) -> Read<Header> {
    let (frame, _) = frame_of(bytes)?;
    let orientation = exif::orientation(Some(&frame.exif), frame.xmp.as_deref());
    Ok(Header { width: frame.width, height: frame.height, orientation })
}

struct Decoder(*mut c_void);

impl Drop for Decoder {
    fn drop(&mut self) {
        unsafe { tjDestroy(self.0) };
    }
}

pub fn decode(bytes: &[u8]) -> Read<Picture> {
    let (Frame { width, height, mode, .. }, scan) = frame_of(bytes)?;
    if !is_whole(bytes, scan) {
        return Err("it is truncated: its end marker is missing".into());
    }
    let mut pixels = blank(mode, width, height)?;
    let format = match mode {
        Mode::Grey => TJPF_GRAY,
        Mode::Cmyk => TJPF_CMYK,
        _ => TJPF_RGB,
    };
    unsafe {
        let decoder = Decoder(tjInitDecompress());
        if decoder.0.is_null() {
            return Err("there is no memory for its decoder".into());
        }
        let status = tjDecompress2(
            decoder.0,
            bytes.as_ptr(),
            bytes.len() as c_ulong,
            pixels.as_mut_ptr(),
            width as c_int,
            (width as usize * mode.bytes()) as c_int,
            height as c_int,
            format,
            TJFLAG_LIMITSCANS,
        );
        // Warnings, of damaged entropy-coded data, are no errors to Pillow either.
        if status != 0 && tjGetErrorCode(decoder.0) != TJERR_WARNING {
            let text = std::ffi::CStr::from_ptr(tjGetErrorStr2(decoder.0)).to_string_lossy();
            return Err(Broken(text.trim_end_matches('.').into()));
        }
    }
    if mode == Mode::Cmyk {
        // Adobe's convention, which Pillow assumes of every such file: 255 is no ink.
        pixels.iter_mut().for_each(|ink| *ink = 255 - *ink);
    }
    Ok(Picture { mode, width, height, pixels, palette: Vec::new(), key: None })
}
