//! WebP by libwebp. Of an animated one, the first frame on its canvas, as Pillow shows it.

use libwebp_sys::{
    WebPAnimDecoder, WebPAnimDecoderDelete, WebPAnimDecoderGetInfo, WebPAnimDecoderGetNext,
    WebPAnimDecoderNew, WebPAnimDecoderOptions, WebPAnimDecoderOptionsInit, WebPAnimInfo,
    WebPBitstreamFeatures, WebPData, WebPGetFeatures, VP8StatusCode, WEBP_CSP_MODE,
};

use super::bytes::{u32_le, Bytes};
use super::{exif, Header, Mode, Picture, Read, TRUNCATED};

fn features_of(bytes: &[u8]) -> Read<WebPBitstreamFeatures> {
    let mut features = std::mem::MaybeUninit::<WebPBitstreamFeatures>::zeroed();
    unsafe {
        match WebPGetFeatures(bytes.as_ptr(), bytes.len(), features.as_mut_ptr()) {
            VP8StatusCode::VP8_STATUS_OK => Ok(features.assume_init()),
            VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA => Err(TRUNCATED.into()),
            status => Err(format!("its header is broken ({status:?})").into()),
        }
    }
}

pub fn header(bytes: &[u8]) -> Read<Header> {
    let features = features_of(bytes)?;
    let (mut exif, mut xmp) = (None, None);
    let mut reader = Bytes::new(bytes);
    reader.seek(12);
    while let Ok(chunk) = chunk(&mut reader) {
        match chunk {
            (b"EXIF", data) if exif.is_none() => exif = Some(data),
            (b"XMP ", data) if xmp.is_none() => xmp = Some(data),
            _ => {}
        }
    }
    Ok(Header {
        width: features.width as u32,
        height: features.height as u32,
        orientation: exif::orientation(exif, xmp),
    })
}

fn chunk<'a>(reader: &mut Bytes<'a>) -> Read<(&'a [u8], &'a [u8])> {
    let name = reader.take(4)?;
    let size = u32_le(reader.take(4)?, 0)? as usize;
    let data = reader.take(size)?;
    reader.seek(reader.at() + size % 2);
    Ok((name, data))
}

struct Decoder(*mut WebPAnimDecoder);

impl Drop for Decoder {
    fn drop(&mut self) {
        unsafe { WebPAnimDecoderDelete(self.0) };
    }
}

pub fn decode(bytes: &[u8]) -> Read<Picture> {
    let has_alpha = features_of(bytes)?.has_alpha != 0;
    let data = WebPData { bytes: bytes.as_ptr(), size: bytes.len() };
    unsafe {
        let mut options = std::mem::zeroed::<WebPAnimDecoderOptions>();
        WebPAnimDecoderOptionsInit(&mut options);
        options.color_mode = WEBP_CSP_MODE::MODE_RGBA;
        let decoder = Decoder(WebPAnimDecoderNew(&data, &options));
        if decoder.0.is_null() {
            return Err("its parts do not fit together".into());
        }
        let mut info = std::mem::zeroed::<WebPAnimInfo>();
        let (mut canvas, mut timestamp) = (std::ptr::null_mut(), 0);
        if WebPAnimDecoderGetInfo(decoder.0, &mut info) == 0
            || WebPAnimDecoderGetNext(decoder.0, &mut canvas, &mut timestamp) == 0
        {
            return Err("its data is broken or truncated".into());
        }
        let (width, height) = (info.canvas_width, info.canvas_height);
        let rgba = std::slice::from_raw_parts(canvas, width as usize * height as usize * 4);
        let (mode, pixels) = if has_alpha {
            (Mode::Rgba, rgba.to_vec())
        } else {
            (Mode::Rgb, rgba.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect())
        };
        Ok(Picture { mode, width, height, pixels, palette: Vec::new(), key: None })
    }
}
