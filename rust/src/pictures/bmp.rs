//! Windows bitmaps: 1, 4, 8, 16, 24 and 32 bits, masks of the usual orders of bytes, and runs.

use super::bytes::{u16_le, u32_le, Bytes};
use super::{blank, Header, Mode, Picture, Read, TRUNCATED};

struct Info<'a> {
    width: u32,
    height: u32,
    top_down: bool,
    bits: u16,
    compression: u32,
    /// Red, green, blue and alpha, where the compression asks for them.
    masks: [u32; 4],
    /// Blue, green and red of each colour, and a fourth byte in files of this century.
    palette: &'a [u8],
    colour_size: usize,
    num_colours: u32,
    data: &'a [u8],
    /// Place of the pixel data in the file.
    offset: usize,
}

const RAW: u32 = 0;
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BITFIELDS: u32 = 3;

fn info_of(bytes: &[u8]) -> Read<Info<'_>> {
    let mut reader = Bytes::new(bytes);
    let mut offset = u32_le(reader.take(14)?, 10)? as usize;
    let header_size = u32_le(reader.take(4)?, 0)? as usize;
    if ![12, 40, 52, 56, 64, 108, 124].contains(&header_size) {
        return Err(format!("its header has {header_size} bytes").into());
    }
    let header = reader.take(header_size - 4)?;
    let mut info = Info {
        width: 0,
        height: 0,
        top_down: false,
        bits: 0,
        compression: RAW,
        masks: [0; 4],
        palette: &[],
        colour_size: 4,
        num_colours: 0,
        data: &[],
        offset: 0,
    };
    if header_size == 12 {
        info.width = u16_le(header, 0)? as u32;
        info.height = u16_le(header, 2)? as u32;
        info.bits = u16_le(header, 6)?;
        info.colour_size = 3;
    } else {
        info.width = u32_le(header, 0)?;
        info.height = u32_le(header, 4)?;
        info.top_down = header[7] == 0xFF;
        if info.top_down {
            info.height = info.height.wrapping_neg();
        }
        info.bits = u16_le(header, 10)?;
        info.compression = u32_le(header, 12)?;
        info.num_colours = u32_le(header, 28)?;
    }
    if info.compression == BITFIELDS {
        let count = if header_size >= 56 { 4 } else { 3 };
        for (i, mask) in info.masks.iter_mut().take(count).enumerate() {
            *mask = if header_size >= 52 {
                u32_le(header, 36 + 4 * i)?
            } else {
                u32_le(reader.take(4)?, 0)?
            };
        }
    }
    if info.bits <= 8 {
        if info.num_colours == 0 {
            info.num_colours = 1 << info.bits;
        }
        if info.num_colours > 256 {
            return Err(format!("it has {} colours", info.num_colours).into());
        }
        let size = info.colour_size * info.num_colours as usize;
        info.palette = reader.take(size)?;
        if offset == 14 + header_size {
            offset += size;
        }
    }
    if offset != 0 {
        reader.seek(offset);
    }
    info.data = reader.rest();
    info.offset = reader.at();
    Ok(info)
}

pub fn header(bytes: &[u8]) -> Read<Header> {
    let Info { width, height, .. } = info_of(bytes)?;
    Ok(Header { width, height, orientation: 1 })
}

/// The places of red, green, blue and alpha among the bytes of a pixel; none: 255.
fn order_of(info: &Info) -> Read<[Option<usize>; 4]> {
    const PLAIN: [Option<usize>; 4] = [Some(2), Some(1), Some(0), None];
    let byte = |mask| match mask {
        0xFF => Some(0),
        0xFF00 => Some(1),
        0xFF0000 => Some(2),
        0xFF000000 => Some(3),
        _ => None,
    };
    if info.compression != BITFIELDS {
        return Ok(PLAIN);
    }
    let order = match (info.bits, info.masks) {
        (24, [0xFF0000, 0xFF00, 0xFF, _]) => return Ok(PLAIN),
        (32, [0, 0, 0, 0]) => [Some(2), Some(1), Some(0), Some(3)],
        // This one's bytes are blue, green, unused, red, and the others' are what they say.
        (32, masks @ ([0xFF0000, 0xFF00, 0xFF, 0 | 0xFF000000]
        | [0xFF000000, 0xFF0000, 0xFF00, 0 | 0xFF]
        | [0xFF000000, 0xFF00, 0xFF, 0 | 0xFF0000]
        | [0xFF, 0xFF00, 0xFF0000, 0xFF000000])) => masks.map(byte),
        _ => return Err("its masks are of an unusual order".into()),
    };
    Ok(order)
}

pub fn decode(bytes: &[u8]) -> Read<Picture> {
    let info = info_of(bytes)?;
    let mut palette = Vec::new();
    let mut mode = Mode::Rgb;
    if info.bits <= 8 {
        let colours = info.palette.chunks_exact(info.colour_size);
        let two = info.num_colours == 2;
        let level = |i: usize| if two { 255 * i } else { i };
        let grey = colours.clone().enumerate().all(|(i, colour)| {
            colour[..3].iter().all(|&c| c as usize == level(i))
        });
        mode = match (grey, info.num_colours) {
            (true, ..=2) => Mode::Bilevel,
            (true, _) => Mode::Grey,
            _ => Mode::Palette,
        };
        if !grey {
            palette = colours.flat_map(|colour| [colour[2], colour[1], colour[0]]).collect();
        }
    }
    let order = order_of(&info)?;
    if order[3].is_some() {
        mode = Mode::Rgba;
    }
    let mut pixels = blank(mode, info.width, info.height)?;
    let width = info.width as usize;
    let row_bytes = width * mode.bytes();
    let last = info.height as usize - 1;
    let place = |row: usize| (if info.top_down { row } else { last - row }) * row_bytes;
    if matches!(info.compression, RLE8 | RLE4) {
        let depth = if info.compression == RLE4 { 4 } else { 8 };
        if info.bits != depth {
            return Err(format!("its runs are of {depth} bits, its pixels of {}", info.bits).into());
        }
        let indices = runs(&info, mode)?;
        for (row, line) in indices.chunks_exact(width).enumerate() {
            pixels[place(row)..][..row_bytes].copy_from_slice(line);
        }
    } else if matches!(info.compression, RAW | BITFIELDS) {
        let stride = (width * info.bits as usize).div_ceil(32) * 4;
        for row in 0..info.height as usize {
            let line = info.data.get(row * stride..).unwrap_or_default();
            let needed = (width * info.bits as usize).div_ceil(8);
            let line = line.get(..needed).ok_or(TRUNCATED)?;
            unpack(&info, mode, &order, line, &mut pixels[place(row)..][..row_bytes])?;
        }
    } else {
        return Err(format!("its compression is {}", info.compression).into());
    }
    let (width, height) = (info.width, info.height);
    Ok(Picture { mode, width, height, pixels, palette, key: None })
}

fn unpack(
    info: &Info,
    mode: Mode,
    order: &[Option<usize>; 4],
    line: &[u8],
    row: &mut [u8],
) -> Read<()> {
    match info.bits {
        1 | 4 | 8 => {
            // Pillow reads grey pictures of fewer than 8 bits so only where they are black and white.
            let bits = info.bits as usize;
            if mode == Mode::Grey && bits != 8 || mode == Mode::Bilevel && bits != 1 {
                return Err(format!("it is grey, with {bits} bits a pixel").into());
            }
            let mask = ((1u32 << bits) - 1) as u8;
            for (x, pixel) in row.iter_mut().enumerate() {
                let bit = x * bits;
                let value = line[bit / 8] >> (8 - bits - bit % 8) & mask;
                *pixel = if mode == Mode::Bilevel { value * 255 } else { value };
            }
        }
        16 => {
            let green_bits = match info.masks {
                _ if info.compression == RAW => 5,
                [0x7C00, 0x3E0, 0x1F, _] => 5,
                [0xF800, 0x7E0, 0x1F, _] => 6,
                _ => return Err("its masks are of an unusual order".into()),
            };
            let green_most = (1u32 << green_bits) - 1;
            for (pixel, pair) in row.chunks_exact_mut(3).zip(line.chunks_exact(2)) {
                let value = u16::from_le_bytes([pair[0], pair[1]]) as u32;
                pixel[0] = ((value >> (5 + green_bits) & 31) * 255 / 31) as u8;
                pixel[1] = ((value >> 5 & green_most) * 255 / green_most) as u8;
                pixel[2] = ((value & 31) * 255 / 31) as u8;
            }
        }
        24 | 32 => {
            let (size, bands) = (info.bits as usize / 8, mode.bytes());
            for (pixel, from) in row.chunks_exact_mut(bands).zip(line.chunks_exact(size)) {
                for (band, place) in pixel.iter_mut().zip(order) {
                    *band = place.map_or(255, |place| from[place]);
                }
            }
        }
        bits => return Err(format!("it has {bits} bits a pixel").into()),
    }
    Ok(())
}

/// The indices of run-length encoding, in the order of the file.
fn runs(info: &Info, mode: Mode) -> Read<Vec<u8>> {
    let (width, all) = (info.width as usize, info.width as usize * info.height as usize);
    let mut indices = blank(mode, info.width, info.height)?;
    let four = info.compression == RLE4;
    let mut reader = Bytes::new(info.data);
    let (mut at, mut x) = (0, 0);
    while at < all {
        let (count, value) = (reader.byte()? as usize, reader.byte()?);
        match (count, value) {
            (0, 0) => {
                at = at.next_multiple_of(width);
                x = 0;
            }
            (0, 1) => return Err(TRUNCATED.into()),
            (0, 2) => {
                let (right, up) = (reader.byte()? as usize, reader.byte()? as usize);
                at = all.min(at + right + up * width);
                x = at % width;
            }
            (0, count) => {
                let count = count as usize;
                let stored = count.min(all - at);
                let line = reader.take(if four { stored.div_ceil(2) } else { stored })?;
                for i in 0..stored {
                    indices[at + i] = match four {
                        true => line[i / 2] >> (4 - 4 * (i % 2)) & 15,
                        false => line[i],
                    };
                }
                at += stored;
                x += count;
                if at < all {
                    // The next code is at an even offset of the file.
                    reader.seek(reader.at() + (info.offset + reader.at()) % 2);
                }
            }
            (count, value) => {
                let count = count.min(width.saturating_sub(x)).min(all - at);
                for i in 0..count {
                    indices[at + i] = match four {
                        true => value >> (4 - 4 * (i % 2)) & 15,
                        false => value,
                    };
                }
                at += count;
                x += count;
            }
        }
    }
    Ok(indices)
}
