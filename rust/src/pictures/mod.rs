//! Picture files of strangers: their size, and their pixels with Pillow's modes and values. The
//! number of pixels is checked before memory for them is allocated.

mod bmp;
mod bytes;
mod exif;
mod gif;
mod jpeg;
mod png;
mod webp;

use crate::{guard, of_a_stranger, Owned, Result, UserError, View};

/// Pillow's modes; their values are those of LsrPictureMode.
#[derive(Clone, Copy, PartialEq)]
pub enum Mode {
    /// Black and white: a byte of 0 or 255.
    Bilevel = 0,
    Grey = 1,
    GreyAlpha = 2,
    Palette = 3,
    Rgb = 4,
    Rgba = 5,
    /// 255 is full ink.
    Cmyk = 6,
    /// Little-endian.
    Grey16 = 7,
}

impl Mode {
    fn bytes(self) -> usize {
        match self {
            Mode::Bilevel | Mode::Grey | Mode::Palette => 1,
            Mode::GreyAlpha | Mode::Grey16 => 2,
            Mode::Rgb => 3,
            Mode::Rgba | Mode::Cmyk => 4,
        }
    }
}

/// Contents of the header. The orientation is EXIF's, 1 to 8.
pub struct Header {
    width: u32,
    height: u32,
    orientation: u8,
}

pub struct Picture {
    mode: Mode,
    width: u32,
    height: u32,
    pixels: Vec<u8>,
    /// Red, green and blue of up to 256 colours.
    palette: Vec<u8>,
    /// The colour that is transparent, if it is one, after conversion to RGB.
    key: Option<[u8; 3]>,
}

/// Why a file cannot be read, to follow "the PNG picture cannot be read: ".
pub struct Broken(String);

impl<T: Into<String>> From<T> for Broken {
    fn from(text: T) -> Self {
        Broken(text.into())
    }
}

pub type Read<T> = std::result::Result<T, Broken>;

const TRUNCATED: &str = "it is truncated";

#[derive(Clone, Copy)]
enum Format {
    Bmp,
    Gif,
    Jpeg,
    Png,
    WebP,
}

impl Format {
    fn of(bytes: &[u8]) -> Option<Format> {
        match bytes {
            [b'B', b'M', ..] => Some(Format::Bmp),
            [0xFF, 0xD8, 0xFF, ..] => Some(Format::Jpeg),
            _ if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") => Some(Format::Gif),
            _ if bytes.starts_with(b"\x89PNG\r\n\x1a\n") => Some(Format::Png),
            _ if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") => {
                Some(Format::WebP)
            }
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Format::Bmp => "BMP",
            Format::Gif => "GIF",
            Format::Jpeg => "JPEG",
            Format::Png => "PNG",
            Format::WebP => "WebP",
        }
    }

    fn header(self, bytes: &[u8]) -> Read<Header> {
        match self {
            Format::Bmp => bmp::header(bytes),
            Format::Gif => gif::header(bytes),
            Format::Jpeg => jpeg::header(bytes),
            Format::Png => png::header(bytes),
            Format::WebP => webp::header(bytes),
        }
    }

    fn decode(self, bytes: &[u8]) -> Read<Picture> {
        match self {
            Format::Bmp => bmp::decode(bytes),
            Format::Gif => gif::decode(bytes),
            Format::Jpeg => jpeg::decode(bytes),
            Format::Png => png::decode(bytes),
            Format::WebP => webp::decode(bytes),
        }
    }
}

/// The memory of all pixels, zeros; an error where the machine has not so much.
fn blank(mode: Mode, width: u32, height: u32) -> Read<Vec<u8>> {
    let size = width as usize * height as usize * mode.bytes();
    let mut pixels = Vec::new();
    pixels.try_reserve_exact(size).map_err(|_| "there is no memory for its pixels")?;
    pixels.resize(size, 0);
    Ok(pixels)
}

/// Black beyond the palette.
fn colour_of(palette: &[u8], index: usize) -> [u8; 3] {
    palette.get(3 * index..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

fn format_of(bytes: &[u8], place: &str) -> Result<Format> {
    Format::of(bytes).ok_or_else(|| {
        let given = if bytes.is_empty() { "an empty file" } else { "a file of another kind" };
        UserError(format!(
            "{place}: {given} was given as a picture; pictures are JPEG, PNG, GIF, WebP or BMP. \
             Convert it to one of these."
        ))
    })
}

fn unreadable(place: &str, format: Format, why: &str) -> UserError {
    UserError(format!(
        "{place}: the {} picture cannot be read: {why}. Replace or remove it.",
        format.name()
    ))
}

fn checked_header(
    bytes: &[u8],
    place: &str,
    format: Format,
    most_pixels: u64,
) -> Result<Header> {
    let broken = |Broken(why)| unreadable(place, format, &why);
    let header = of_a_stranger(&place, || format.header(bytes).map_err(broken))?;
    let (width, height) = (header.width, header.height);
    if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
        return Err(unreadable(place, format, &format!("its size is {width} x {height}")));
    }
    let pixels = width as u64 * height as u64;
    if pixels > most_pixels {
        return Err(UserError(format!(
            "{place}: the picture has {width} x {height} = {pixels} pixels; the limit is \
             {most_pixels}. Make it smaller."
        )));
    }
    Ok(header)
}

#[repr(C)]
pub struct PictureOut {
    mode: i32,
    orientation: i32,
    width: u32,
    height: u32,
    key: i32,
    pixels: Owned<u8>,
    palette: Owned<u8>,
}

#[no_mangle]
pub unsafe extern "C" fn lsr_picture_size(
    bytes: View,
    place: View,
    most_pixels: u64,
    width: *mut u32,
    height: *mut u32,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let (bytes, place) = (bytes.bytes(), place.text());
        let format = format_of(bytes, &place)?;
        let header = checked_header(bytes, &place, format, most_pixels)?;
        let swapped = header.orientation >= 5;
        width.write(if swapped { header.height } else { header.width });
        height.write(if swapped { header.width } else { header.height });
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_picture_decode(
    bytes: View,
    place: View,
    most_pixels: u64,
    picture: *mut PictureOut,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let (bytes, place) = (bytes.bytes(), place.text());
        let format = format_of(bytes, &place)?;
        let header = checked_header(bytes, &place, format, most_pixels)?;
        let broken = |Broken(why)| unreadable(&place, format, &why);
        let decoded = of_a_stranger(&place, || format.decode(bytes).map_err(broken))?;
        if (decoded.width, decoded.height) != (header.width, header.height) {
            return Err(unreadable(&place, format, "it has two sizes"));
        }
        picture.write(PictureOut {
            mode: decoded.mode as i32,
            orientation: header.orientation as i32,
            width: decoded.width,
            height: decoded.height,
            key: decoded.key.map_or(-1, |[r, g, b]| i32::from_be_bytes([0, r, g, b])),
            pixels: Owned::new(decoded.pixels),
            palette: Owned::new(decoded.palette),
        });
        Ok(())
    })
}
