//! PNG. Of an animated one, the first frame.

use std::io::{Cursor, Read as _};

use png::{BitDepth, ColorType, Decoder, Limits, Transformations};

use super::bytes::{u32_be, Bytes};
use super::{blank, colour_of, exif, Header, Mode, Picture, Read};

const SIGNATURE: usize = 8;
/// Most bytes of a compressed text that are read.
const MOST_TEXT: u64 = 1 << 20;

/// EXIF and XMP may follow the pixels; chunks are skipped by their length.
pub fn header(bytes: &[u8]) -> Read<Header> {
    let mut reader = Bytes::new(bytes);
    reader.seek(SIGNATURE);
    let mut size = None;
    let (mut exif, mut profile, mut xmp) = (None, None, None);
    // Pillow takes what follows the last whole chunk for the end.
    while let Ok(chunk) = chunk(&mut reader) {
        let (name, data) = chunk;
        match name {
            b"IHDR" if size.is_none() => size = Some((u32_be(data, 0)?, u32_be(data, 4)?)),
            b"eXIf" => exif = Some(data.to_vec()),
            b"tEXt" => {
                if let Some(text) = data.strip_prefix(b"Raw profile type exif\0") {
                    profile = raw_profile(text);
                }
            }
            b"zTXt" => {
                if let Some(text) = data.strip_prefix(b"Raw profile type exif\0\0") {
                    profile = inflated(text).as_deref().and_then(raw_profile);
                }
            }
            b"iTXt" => {
                if let Some(text) = data.strip_prefix(b"XML:com.adobe.xmp\0") {
                    xmp = international_text(text);
                }
            }
            b"IEND" => break,
            _ => {}
        }
    }
    let (width, height) = size.ok_or("it has no header")?;
    let exif = exif.or(profile);
    let orientation = exif::orientation(exif.as_deref(), xmp.as_deref());
    Ok(Header { width, height, orientation })
}

fn chunk<'a>(reader: &mut Bytes<'a>) -> Read<(&'a [u8], &'a [u8])> {
    let size = u32_be(reader.take(4)?, 0)? as usize;
    let name = reader.take(4)?;
    let data = reader.take(size)?;
    reader.take(4)?; // the checksum
    Ok((name, data))
}

fn inflated(compressed: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let decoder = flate2::read::ZlibDecoder::new(compressed);
    decoder.take(MOST_TEXT).read_to_end(&mut text).ok()?;
    Some(text)
}

/// ImageMagick's text: a name and a length on lines of their own, then hexadecimal digits.
fn raw_profile(text: &[u8]) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .split(|&byte| byte == b'\n')
        .skip(3)
        .flatten()
        .filter_map(|&byte| (byte as char).to_digit(16).map(|digit| digit as u8))
        .collect();
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The fields after the keyword: whether the text is compressed, the method, language, translated keyword.
fn international_text(data: &[u8]) -> Option<Vec<u8>> {
    let (&compressed, rest) = data.split_first()?;
    let (_, rest) = rest.split_first()?;
    let mut parts = rest.splitn(3, |&byte| byte == 0);
    let text = parts.nth(2)?;
    if compressed == 0 {
        Some(text.to_vec())
    } else {
        inflated(text)
    }
}

/// The transparent colour that Pillow's RGB picture keeps. It takes the numbers of bilevel and
/// 16-bit pictures for a red level.
fn key_of(bytes: &[u8], mode: Mode, palette: &[u8]) -> Option<[u8; 3]> {
    let mut reader = Bytes::new(bytes);
    reader.seek(SIGNATURE);
    let mut transparent = None;
    while let Ok((name, data)) = chunk(&mut reader) {
        match name {
            b"tRNS" => transparent = Some(data),
            b"IEND" => break,
            _ => {}
        }
    }
    let data = transparent?;
    let number = |i: usize| data.get(2 * i..)?.first_chunk().map(|pair| u16::from_be_bytes(*pair));
    match mode {
        Mode::Bilevel => number(0).map(|value| [if value == 0 { 0 } else { 255 }, 0, 0]),
        Mode::Grey => number(0).map(|value| [value.min(255) as u8; 3]),
        Mode::Grey16 => number(0).map(|value| [value as u8, 0, 0]),
        Mode::Rgb => Some([number(0)? as u8, number(1)? as u8, number(2)? as u8]),
        // One entry is transparent and the others are not; several are no colour.
        Mode::Palette => {
            let index = data.iter().position(|&alpha| alpha != 255)?;
            let others = data[index + 1..].iter().all(|&alpha| alpha == 255);
            (data[index] == 0 && others).then(|| colour_of(palette, index))
        }
        _ => None,
    }
}

pub fn decode(bytes: &[u8]) -> Read<Picture> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    // The pixels are in memory of their own, which is bounded before.
    decoder.set_limits(Limits { bytes: 64 << 20 });
    let why = |error: png::DecodingError| error.to_string().trim_end_matches('.').to_string();
    let mut reader = decoder.read_info().map_err(why)?;
    let (width, height) = reader.info().size();
    let (color, depth) = reader.output_color_type();
    let samples = color.samples();
    let size = reader.output_buffer_size().ok_or("there is no memory for its pixels")?;
    let mut packed = Vec::new();
    packed.try_reserve_exact(size).map_err(|_| "there is no memory for its pixels")?;
    packed.resize(size, 0);
    let frame = reader.next_frame(&mut packed).map_err(why)?;
    if (frame.width, frame.height) != (width, height) {
        return Err("its first frame is smaller than the picture".into());
    }
    let palette = reader.info().palette.as_deref().unwrap_or_default().to_vec();
    let mode = match (color, depth) {
        (ColorType::Grayscale, BitDepth::One) => Mode::Bilevel,
        (ColorType::Grayscale, BitDepth::Sixteen) => Mode::Grey16,
        (ColorType::Grayscale, _) => Mode::Grey,
        (ColorType::Rgb, _) => Mode::Rgb,
        (ColorType::Indexed, _) => Mode::Palette,
        (ColorType::GrayscaleAlpha, BitDepth::Sixteen) => Mode::Rgba,
        (ColorType::GrayscaleAlpha, _) => Mode::GreyAlpha,
        (ColorType::Rgba, _) => Mode::Rgba,
    };
    let pixels = match (mode, depth) {
        (_, BitDepth::Eight) => packed,
        (Mode::Grey16, _) => {
            packed.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
            packed
        }
        // The high byte of each sample.
        (_, BitDepth::Sixteen) if color == ColorType::GrayscaleAlpha => packed
            .chunks_exact(2 * samples)
            .flat_map(|pixel| [pixel[0], pixel[0], pixel[0], pixel[2]])
            .collect(),
        (_, BitDepth::Sixteen) => packed.iter().step_by(2).copied().collect(),
        _ => {
            let bits = depth as u32;
            let white = (1u32 << bits) - 1;
            let scale = if mode == Mode::Palette { 1 } else { (255 / white) as u8 };
            let mut pixels = blank(mode, width, height)?;
            let rows = pixels.chunks_exact_mut(width as usize);
            for (row, line) in rows.zip(packed.chunks_exact(frame.line_size)) {
                for (x, pixel) in row.iter_mut().enumerate() {
                    let bit = x as u32 * bits;
                    let shifted = line[(bit / 8) as usize] >> (8 - bits - bit % 8);
                    *pixel = (shifted & white as u8) * scale;
                }
            }
            pixels
        }
    };
    let key = key_of(bytes, mode, &palette);
    Ok(Picture { mode, width, height, pixels, palette, key })
}
