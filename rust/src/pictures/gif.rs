//! GIF: the first frame on the logical screen.

use weezl::{decode::Decoder, BitOrder, LzwStatus};

use super::bytes::{u16_le, Bytes};
use super::{blank, colour_of, Header, Mode, Picture, Read, TRUNCATED};

struct Frame<'a> {
    /// Size of the picture: the screen, larger where the frame goes beyond it.
    width: u32,
    height: u32,
    left: u32,
    top: u32,
    frame_width: u32,
    frame_height: u32,
    interlaced: bool,
    /// Empty where the colours are grey levels in order, or there is no palette.
    palette: &'a [u8],
    transparent: Option<u8>,
    /// From the code size on.
    data: &'a [u8],
}

/// Colours of a table that is not the grey levels in order, of which Pillow makes a grey picture.
fn colours<'a>(reader: &mut Bytes<'a>, flags: u8) -> Read<Option<&'a [u8]>> {
    if flags & 0x80 == 0 {
        return Ok(None);
    }
    let table = reader.take(3 << ((flags & 7) + 1))?;
    let is_grey = |(level, colour): (usize, &[u8])| colour.iter().all(|&c| c as usize == level);
    let grey = table.chunks_exact(3).enumerate().all(is_grey);
    Ok(Some(if grey { &[] } else { table }))
}

fn skip_blocks(reader: &mut Bytes) -> Read<()> {
    loop {
        match reader.byte()? {
            0 => return Ok(()),
            size => reader.take(size as usize)?,
        };
    }
}

fn frame_of(bytes: &[u8]) -> Read<Frame<'_>> {
    let mut reader = Bytes::new(bytes);
    let screen = reader.take(13)?;
    let (width, height) = (u16_le(screen, 6)? as u32, u16_le(screen, 8)? as u32);
    let global = colours(&mut reader, screen[10])?;
    let mut transparent = None;
    loop {
        match reader.byte()? {
            b'!' => {
                let kind = reader.byte()?;
                let size = reader.byte()? as usize;
                let block = reader.take(size)?;
                if kind == 249 {
                    if let [flags, _, _, index, ..] = *block {
                        if flags & 1 != 0 {
                            transparent = Some(index);
                        }
                    }
                }
                if size > 0 {
                    skip_blocks(&mut reader)?;
                }
            }
            b',' => {
                let at = reader.take(9)?;
                let number = |place| u16_le(at, place).map(u32::from);
                let (left, top) = (number(0)?, number(2)?);
                let (frame_width, frame_height) = (number(4)?, number(6)?);
                let local = colours(&mut reader, at[8])?;
                return Ok(Frame {
                    width: width.max(left + frame_width),
                    height: height.max(top + frame_height),
                    left,
                    top,
                    frame_width,
                    frame_height,
                    interlaced: at[8] & 0x40 != 0,
                    palette: local.or(global).unwrap_or_default(),
                    transparent,
                    data: reader.rest(),
                });
            }
            b';' => return Err("it has no frame".into()),
            _ => {}
        }
    }
}

pub fn header(bytes: &[u8]) -> Read<Header> {
    let Frame { width, height, .. } = frame_of(bytes)?;
    Ok(Header { width, height, orientation: 1 })
}

/// Fills `indices`, in the order of the file.
fn decompress(data: &[u8], indices: &mut [u8]) -> Read<()> {
    let mut reader = Bytes::new(data);
    let code_size = reader.byte()?;
    if !(1..=11).contains(&code_size) {
        return Err(format!("its codes begin with {code_size} bits").into());
    }
    let mut decoder = Decoder::new(BitOrder::Lsb, code_size);
    let mut filled = 0;
    while filled < indices.len() {
        let size = reader.byte()? as usize;
        if size == 0 {
            return Err(TRUNCATED.into());
        }
        let mut block = reader.take(size)?;
        while filled < indices.len() {
            let step = decoder.decode_bytes(block, &mut indices[filled..]);
            block = &block[step.consumed_in..];
            filled += step.consumed_out;
            match step.status {
                Ok(LzwStatus::Ok) => {}
                Ok(LzwStatus::NoProgress) => break,
                Ok(LzwStatus::Done) if filled < indices.len() => return Err(TRUNCATED.into()),
                Ok(LzwStatus::Done) => {}
                Err(error) => return Err(error.to_string().into()),
            }
            if block.is_empty() && step.consumed_out == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// The row of the frame that comes n-th in an interlaced file.
fn interlaced_rows(height: u32) -> impl Iterator<Item = u32> {
    [(0, 8), (4, 8), (2, 4), (1, 2)]
        .into_iter()
        .flat_map(move |(first, step)| (first..height).step_by(step))
}

pub fn decode(bytes: &[u8]) -> Read<Picture> {
    let frame = frame_of(bytes)?;
    let mode = if frame.palette.is_empty() { Mode::Grey } else { Mode::Palette };
    let mut indices = blank(mode, frame.frame_width, frame.frame_height)?;
    decompress(frame.data, &mut indices)?;
    let mut pixels = blank(mode, frame.width, frame.height)?;
    if let Some(index) = frame.transparent {
        pixels.fill(index);
    }
    let rows: Box<dyn Iterator<Item = u32>> = if frame.interlaced {
        Box::new(interlaced_rows(frame.frame_height))
    } else {
        Box::new(0..frame.frame_height)
    };
    let width = frame.frame_width as usize;
    if width > 0 {
        for (line, row) in indices.chunks_exact(width).zip(rows) {
            let begin = (frame.top + row) as usize * frame.width as usize + frame.left as usize;
            pixels[begin..begin + width].copy_from_slice(line);
        }
    }
    let (width, height, palette) = (frame.width, frame.height, frame.palette.to_vec());
    let key = frame.transparent.map(|index| match mode {
        Mode::Palette => colour_of(&palette, index as usize),
        _ => [index; 3],
    });
    Ok(Picture { mode, width, height, pixels, palette, key })
}
