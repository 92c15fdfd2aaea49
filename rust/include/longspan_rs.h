/* C interface of the Rust archive: tokenizer, chat templates, YAML, csv, parquet, Arrow, pictures,
 * progress bar, HTTP, regular expressions, similarity of texts.
 *
 * Every function that can fail returns an LsrStatus and, when it is not LSR_OK, fills *error (to be
 * freed by lsr_string_free). No panic crosses this border. Text is UTF-8 by pointer and size, not
 * terminated; invalid UTF-8 is read with U+FFFD in place of each broken part. Handles are opaque;
 * a tokenizer may be used from several threads, a progress bar from one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  LSR_OK = 0,
  LSR_USER_ERROR = 1, /* the user can mend it: *error says what and how */
  LSR_DEFECT = 2      /* a bug in this archive (a caught panic) */
} LsrStatus;

typedef struct {
  const char* data;
  size_t size;
} LsrView;

/* Owned by the caller, freed by lsr_string_free / lsr_ids_free. */
typedef struct {
  char* data;
  size_t size;
} LsrString;
typedef struct {
  uint32_t* data;
  size_t size;
} LsrIds;
void lsr_string_free(LsrString text);
void lsr_ids_free(LsrIds ids);

/* Tokenizer of a Hugging Face folder. */
typedef struct LsrTokenizer LsrTokenizer;
LsrStatus lsr_tokenizer_load(LsrView folder, LsrTokenizer** tokenizer, LsrString* error);
/* Adds tokens; tokens of the vocabulary keep their ids. Before any other use of the tokenizer. */
LsrStatus lsr_tokenizer_add(LsrTokenizer* tokenizer, const LsrView* tokens, size_t num_tokens,
                            bool special, LsrString* error);
/* The text of tokenizer.json with all added tokens. */
LsrStatus lsr_tokenizer_file(const LsrTokenizer* tokenizer, LsrString* json, LsrString* error);
void lsr_tokenizer_free(LsrTokenizer* tokenizer);
/* JSON object: vocab_size, and bos_token, eos_token, pad_token, unk_token, chat_template where
 * they are known; processor_template (of chat_template.json) where chat_template is not. */
LsrStatus lsr_tokenizer_info(const LsrTokenizer* tokenizer, LsrString* json, LsrString* error);
/* Fills ids[0 .. num_texts). On failure nothing is to be freed. */
LsrStatus lsr_tokenizer_encode(const LsrTokenizer* tokenizer, const LsrView* texts,
                               size_t num_texts, bool add_special_tokens, LsrIds* ids,
                               LsrString* error);
/* id, begin, end of each token one after the other; the places are byte offsets into the text. */
LsrStatus lsr_tokenizer_encode_with_offsets(const LsrTokenizer* tokenizer, LsrView text,
                                            bool add_special_tokens, LsrIds* triples,
                                            LsrString* error);
LsrStatus lsr_tokenizer_decode(const LsrTokenizer* tokenizer, const uint32_t* ids, size_t num_ids,
                               bool skip_special_tokens, LsrString* text, LsrString* error);
/* The token's id, or -1. */
int64_t lsr_tokenizer_id_of(const LsrTokenizer* tokenizer, LsrView token);
LsrStatus lsr_train_byte_level_bpe(const LsrView* files, size_t num_files, size_t vocab_size,
                                   LsrView output_folder, LsrString* error);

/* Renders a chat template, within bounds that grow with the variables (src/budget.rs). `spans` gets
 * a JSON list of [begin, end) byte offsets of the
 * {% generation %} blocks. */
LsrStatus lsr_render_chat_template(LsrView chat_template, LsrView variables_json, LsrString* text,
                                   LsrString* spans, LsrString* error);

LsrStatus lsr_yaml_to_json(LsrView yaml, LsrView file_name, LsrString* json, LsrString* error);

/* Splits the bytes of a csv file into records: commas, quoted cells, doubled quotes; a line ends
 * with a line feed, a carriage return or both. */
typedef struct LsrCsv LsrCsv;
typedef struct {
  const char* cells;  /* the text of all cells, without their quotes, one behind the other */
  const size_t* ends; /* of each cell, in `cells` */
  size_t num_cells;
  bool is_utf8; /* each cell */
} LsrCsvRecord;
LsrCsv* lsr_csv_new(void);
/* Reads the next bytes of the file, up to the end of a record, and sets *used to their number.
 * Fills *record if it is complete. The record is the archive's, and valid until the next call. */
LsrStatus lsr_csv_push(LsrCsv* csv, LsrView bytes, size_t* used, bool* is_complete,
                       LsrCsvRecord* record, LsrString* error);
void lsr_csv_free(LsrCsv* csv);

/* The records of a parquet or an Arrow file (a stream, or a file of random access), of which a
 * descriptor is open. `left_out` gets the fields that are not read, as a JSON list of {column,
 * path, type}. */
typedef struct LsrColumns LsrColumns;
LsrStatus lsr_columns_open(int32_t descriptor, bool is_parquet, LsrColumns** columns,
                           LsrString* left_out, LsrString* error);
/* Sets `record` to the next record, a JSON object, valid until the next call; its data is null
 * after the last record. `num_unbounded`: numbers so far that are nan or infinite, written as null.
 */
LsrStatus lsr_columns_next(LsrColumns* columns, LsrView* record, uint64_t* num_unbounded,
                           LsrString* error);
void lsr_columns_free(LsrColumns* columns);

/* Decompresses a file from the place of its open descriptor on: gzip, or zstd. */
typedef struct LsrDecompress LsrDecompress;
LsrStatus lsr_decompress_new(int32_t descriptor, bool is_zstd, LsrDecompress** file,
                             LsrString* error);
/* Sets *num_read to 0 at the end of the file alone. */
LsrStatus lsr_decompress_read(LsrDecompress* file, char* to, size_t size, size_t* num_read,
                              LsrString* error);
void lsr_decompress_free(LsrDecompress* file);

/* `plot_json`: {width, height, panels: [{title, x_label, y_label, curves: [{label, x, y, faint,
 * dashed}]}]}; null in x or y leaves a gap. */
LsrStatus lsr_write_plot(LsrView png_path, LsrView plot_json, LsrString* error);

/* `bars_json`: {width, height, title, rows: [name], panels: [{title, x_label, parts: [{label,
 * values}], notes, marks, mark_label}]}; values, notes and marks go by row; null is no bar, no
 * mark. */
LsrStatus lsr_write_bars(LsrView png_path, LsrView bars_json, LsrString* error);

/* Lines that a user types at the terminal. `end` is 0: a line (maybe empty, without its end), 1:
 * Ctrl-C, 2: Ctrl-D. */
typedef struct LsrLineEditor LsrLineEditor;
LsrStatus lsr_line_editor_new(LsrLineEditor** editor, LsrString* error);
LsrStatus lsr_line_editor_read(LsrLineEditor* editor, LsrView prompt, int32_t* end, LsrString* text,
                               LsrString* error);
void lsr_line_editor_free(LsrLineEditor* editor);

/* A new file of TensorBoard's events in `folder`, whose name ends with `suffix`. What earlier ones
 * of that suffix hold beyond `last_step` goes; where that is negative they go themselves. */
typedef struct LsrEvents LsrEvents;
LsrStatus lsr_events_new(LsrView folder, LsrView suffix, int64_t last_step, LsrEvents** events,
                         LsrString* error);
/* `scalars_json`: an object of numbers, or "nan", "inf", "-inf", by tag. After a failure what could
 * not be written is tried again with what comes next. */
LsrStatus lsr_events_add(LsrEvents* events, LsrView scalars_json, int64_t step, LsrString* error);
void lsr_events_free(LsrEvents* events);

/* A picture file's pixels, with Pillow's modes and values. */
typedef enum {
  LSR_BILEVEL = 0, /* a byte of 0 or 255 */
  LSR_GREY = 1,
  LSR_GREY_ALPHA = 2,
  LSR_PALETTE = 3,
  LSR_RGB = 4,
  LSR_RGBA = 5,
  LSR_CMYK = 6,  /* 255 is full ink */
  LSR_GREY16 = 7 /* little-endian */
} LsrPictureMode;
typedef struct {
  int32_t mode;
  int32_t orientation; /* EXIF's, 1 to 8, not applied */
  uint32_t width, height;
  int32_t key;       /* red, green, blue of the transparent colour in RGB; -1: none */
  LsrString pixels;  /* row by row, without padding */
  LsrString palette; /* red, green and blue of up to 256 colours */
} LsrPicture;
/* Width and height after orientation, from the header alone. `place` begins each error. More than
 * `most_pixels` are an error before memory is allocated for them. */
LsrStatus lsr_picture_size(LsrView bytes, LsrView place, uint64_t most_pixels, uint32_t* width,
                           uint32_t* height, LsrString* error);
/* The first frame of an animated picture. On success pixels and palette are to be freed. */
LsrStatus lsr_picture_decode(LsrView bytes, LsrView place, uint64_t most_pixels,
                             LsrPicture* picture, LsrString* error);

/* HTTP requests, each in a thread and with a connection of its own; http:// only. */
typedef struct LsrHttp LsrHttp;
typedef struct {
  LsrView url, body;
  LsrView bearer; /* of the header Authorization; empty: none */
  bool is_post;   /* POST of the body, which is JSON; otherwise GET */
  double connect_seconds, total_seconds;
  uint64_t most_bytes; /* of the answer */
} LsrHttpRequest;
typedef struct {
  uint64_t key;   /* of the request */
  int32_t status; /* 0: no whole answer came, and `problem` says why */
  bool may_pass;  /* the problem is one of the connection or of time */
  LsrString body, problem;
} LsrHttpAnswer;
LsrHttp* lsr_http_new(void);
LsrStatus lsr_http_start(const LsrHttp* http, uint64_t key, const LsrHttpRequest* request,
                         LsrString* error);
/* Waits for the end of any request. On success with *has_ended, body and problem are to be freed.
 */
LsrStatus lsr_http_wait(const LsrHttp* http, uint64_t milliseconds, bool* has_ended,
                        LsrHttpAnswer* answer, LsrString* error);
/* Requests that have not ended are left to themselves. */
void lsr_http_free(LsrHttp* http);

/* A regular expression (crate regex: linear time) that must match a whole text. */
typedef struct LsrRegex LsrRegex;
LsrStatus lsr_regex_new(LsrView pattern, LsrRegex** regex, LsrString* error);
LsrStatus lsr_regex_matches(const LsrRegex* regex, LsrView text, bool* matches, LsrString* error);
void lsr_regex_free(LsrRegex* regex);

/* Fills scores[0 .. 4) with ROUGE-1, ROUGE-2, ROUGE-L and BLEU-4 in percent, rounded to four
 * decimals, as LLaMA-Factory computes them by jieba, rouge_chinese and nltk. */
LsrStatus lsr_similarity(LsrView answer, LsrView reference, double* scores, LsrString* error);

/* An incremental XXH64 with seed 0. */
typedef struct LsrXxh64 LsrXxh64;
LsrXxh64* lsr_xxh64_new(void);
void lsr_xxh64_add(LsrXxh64* hash, LsrView bytes);
uint64_t lsr_xxh64_value(const LsrXxh64* hash);
void lsr_xxh64_free(LsrXxh64* hash);

/* A bar on stderr. */
typedef struct LsrProgress LsrProgress;
LsrProgress* lsr_progress_new(uint64_t total, uint64_t start);
void lsr_progress_update(LsrProgress* bar, uint64_t position, LsrView message);
/* Prints a line to stderr above the bar. */
void lsr_progress_print(LsrProgress* bar, LsrView line);
/* Leaves the bar as it stands on the screen and frees it. */
void lsr_progress_free(LsrProgress* bar);

#ifdef __cplusplus
}
#endif
