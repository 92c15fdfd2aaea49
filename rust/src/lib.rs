//! Text services for the C++ program behind a small C interface (see include/longspan_rs.h).

mod added_tokens;
mod bars;
mod budget;
mod chat_template;
mod columns;
mod compressed;
mod csv;
mod events;
mod files;
mod generation_blocks;
mod held_memory;
mod http;
mod json;
mod line_editor;
mod local_time;
mod pictures;
mod plot;
mod progress;
mod python;
mod python_methods;
mod similarity;
mod template_code;
mod template_guards;
mod template_scan;
mod template_values;
mod tokenizer;
mod tokenizer_checks;
mod tokenizer_config;
mod train;
mod whole_match;
mod xxh64;
mod yaml;

use std::borrow::Cow;
use std::panic::{catch_unwind, AssertUnwindSafe};

use events::EventFile;
use line_editor::{Line, LineEditor};
use progress::Progress;
use tokenizer::HfTokenizer;

/// A mistake that the user can fix; the message says what and how. Everything else panics and is
/// caught at the C interface.
pub struct UserError(pub String);
pub type Result<T> = std::result::Result<T, UserError>;

const OK: i32 = 0;
const USER_ERROR: i32 = 1;
const DEFECT: i32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct Owned<T> {
    data: *mut T,
    size: usize,
}

impl View {
    /// The caller must keep the memory alive during the call.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        slice(self.data, self.size)
    }
    unsafe fn text<'a>(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.bytes())
    }
}

/// A slice that may be given as (null, 0).
unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

impl<T> Owned<T> {
    fn new(values: Vec<T>) -> Self {
        let values = Box::leak(values.into_boxed_slice());
        Owned { data: values.as_mut_ptr(), size: values.len() }
    }
    unsafe fn free(self) {
        if !self.data.is_null() {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data, self.size)));
        }
    }
}

fn owned(text: String) -> Owned<u8> {
    Owned::new(text.into_bytes())
}

fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    text.unwrap_or_else(|| "panic".into())
}

/// A panic is reported where it is caught, not on the terminal.
fn keep_panics_silent() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// Runs code on a foreign file: a panic is reported as an error of that file.
fn of_a_stranger<T>(
    file: &dyn std::fmt::Display,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic_text(panic);
        let what: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
        Err(UserError(format!("{file} is broken: what reads it gives up ({what}).")))
    })
}

/// Runs `body`; converts an error or a panic to a status and a message.
unsafe fn guard(error: *mut Owned<u8>, body: impl FnOnce() -> Result<()>) -> i32 {
    keep_panics_silent();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(UserError(message))) => {
            error.write(owned(message));
            USER_ERROR
        }
        Err(panic) => {
            error.write(owned(panic_text(panic)));
            DEFECT
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn lsr_string_free(text: Owned<u8>) {
    text.free();
}

#[no_mangle]
pub unsafe extern "C" fn lsr_ids_free(ids: Owned<u32>) {
    ids.free();
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_load(
    folder: View,
    tokenizer: *mut *mut HfTokenizer,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let loaded = HfTokenizer::load(std::path::Path::new(folder.text().as_ref()))?;
        tokenizer.write(Box::into_raw(Box::new(loaded)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_free(tokenizer: *mut HfTokenizer) {
    if !tokenizer.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(tokenizer))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_info(
    tokenizer: *const HfTokenizer,
    json: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        json.write(owned((*tokenizer).info().to_string()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_encode(
    tokenizer: *const HfTokenizer,
    texts: *const View,
    num_texts: usize,
    add_special_tokens: bool,
    ids: *mut Owned<u32>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let texts = slice(texts, num_texts).iter().map(|view| view.text()).collect();
        let encoded = (*tokenizer).encode(texts, add_special_tokens)?;
        for (i, one) in encoded.into_iter().enumerate() {
            ids.add(i).write(Owned::new(one));
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_encode_with_offsets(
    tokenizer: *const HfTokenizer,
    text: View,
    add_special_tokens: bool,
    triples: *mut Owned<u32>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let encoded = (*tokenizer).encode_with_offsets(&text.text(), add_special_tokens)?;
        triples.write(Owned::new(encoded));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_decode(
    tokenizer: *const HfTokenizer,
    ids: *const u32,
    num_ids: usize,
    skip_special_tokens: bool,
    text: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        text.write(owned((*tokenizer).decode(slice(ids, num_ids), skip_special_tokens)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_tokenizer_id_of(tokenizer: *const HfTokenizer, token: View) -> i64 {
    keep_panics_silent();
    catch_unwind(AssertUnwindSafe(|| (*tokenizer).id_of(&token.text()))).unwrap_or(-1)
}

#[no_mangle]
pub unsafe extern "C" fn lsr_train_byte_level_bpe(
    files: *const View,
    num_files: usize,
    vocab_size: usize,
    output_folder: View,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let files: Vec<_> = slice(files, num_files).iter().map(|file| file.text()).collect();
        train::byte_level_bpe(&files, vocab_size, output_folder.text().as_ref())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_render_chat_template(
    chat_template: View,
    variables_json: View,
    text: *mut Owned<u8>,
    spans: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let rendered = of_a_stranger(&"The chat template", || {
            chat_template::render(&chat_template.text(), &variables_json.text())
        })?;
        spans.write(owned(serde_json::to_string(&rendered.generation).unwrap()));
        text.write(owned(rendered.text));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_yaml_to_json(
    yaml: View,
    file_name: View,
    json: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let file_name = file_name.text();
        let read = of_a_stranger(&file_name, || yaml::to_json(yaml.bytes(), &file_name))?;
        json.write(owned(read));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_write_plot(
    png_path: View,
    plot_json: View,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || plot::write(&png_path.text(), &plot_json.text()))
}

#[no_mangle]
pub unsafe extern "C" fn lsr_write_bars(
    png_path: View,
    bars_json: View,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || bars::write(&png_path.text(), &bars_json.text()))
}

#[no_mangle]
pub unsafe extern "C" fn lsr_events_new(
    folder: View,
    suffix: View,
    last_step: i64,
    events: *mut *mut EventFile,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let made = EventFile::new(&folder.text(), &suffix.text(), last_step)?;
        events.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_events_add(
    events: *mut EventFile,
    scalars_json: View,
    step: i64,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || (*events).add(&scalars_json.text(), step))
}

#[no_mangle]
pub unsafe extern "C" fn lsr_events_free(events: *mut EventFile) {
    if !events.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(events))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lsr_progress_new(total: u64, start: u64) -> *mut Progress {
    catch_unwind(|| Box::into_raw(Box::new(Progress::new(total, start))))
        .unwrap_or(std::ptr::null_mut())
}

#[no_mangle]
pub unsafe extern "C" fn lsr_progress_update(bar: *mut Progress, position: u64, message: View) {
    if let Some(bar) = bar.as_ref() {
        let _ = catch_unwind(AssertUnwindSafe(|| bar.update(position, &message.text())));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lsr_progress_print(bar: *mut Progress, line: View) {
    if let Some(bar) = bar.as_ref() {
        let _ = catch_unwind(AssertUnwindSafe(|| bar.print(&line.text())));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lsr_progress_free(bar: *mut Progress) {
    if !bar.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| Box::from_raw(bar).finish()));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lsr_line_editor_new(
    editor: *mut *mut LineEditor,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        editor.write(Box::into_raw(Box::new(LineEditor::new()?)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_line_editor_read(
    editor: *mut LineEditor,
    prompt: View,
    end: *mut i32,
    text: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let (kind, line) = match (*editor).read(&prompt.text())? {
            Line::Text(line) => (0, line),
            Line::Interrupted => (1, String::new()),
            Line::End => (2, String::new()),
        };
        end.write(kind);
        text.write(owned(line));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_line_editor_free(editor: *mut LineEditor) {
    if !editor.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(editor))));
    }
}
