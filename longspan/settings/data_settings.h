// Data sets, and how rows become tokens. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

struct DataSettings {
  std::string dataset, eval_dataset, dataset_dir = "data";
  std::string chat_template;  // key `template`; empty: the model's own chat_template
  std::string add_tokens, add_special_tokens;  // beside those of the tokenizer; with commas between
  int64_t cutoff_len = 2048;
  std::optional<int64_t> max_samples;
  std::string mix_strategy = "concat";  // concat | interleave_under | _over | _once
  std::string interleave_probs;         // numbers with commas between; empty: in turn
  std::optional<int64_t> preprocessing_num_workers;
  double val_size = 0.0;
  bool mask_history = false, train_on_prompt = false;
  std::optional<std::string> default_system;
  std::optional<bool> enable_thinking;  // not set: the template's own default
  bool preserve_thinking = false;
  std::string on_bad_row = "stop";  // stop | skip
  std::optional<bool> packing;      // not set: true for pt, else false
  bool neat_packing = false;
  std::string cache_dir;  // empty: the system's folder for temporary files, and the user's cache
  std::string tokenized_path;    // folder of the encoded rows; empty: none
  bool overwrite_cache = false;  // encode again, whatever is kept
  bool streaming = false;        // rows are read and encoded during training
  int64_t buffer_size = 16384;   // streaming: rows among which rows are drawn
  std::string media_dir;         // of pictures; empty: dataset_dir
  int64_t image_max_pixels = 768 * 768, image_min_pixels = 32 * 32;
  int64_t video_max_pixels = 256 * 256, video_min_pixels = 16 * 16;  // of a frame
  double video_fps = 2.0;
  int64_t video_maxlen = 128;  // frames of a video file
  bool asks_rows = false;      // no key: rows are questions to answer (eval_rows_of)
  bool v1_rows = false;        // no key: labels and cut of LLaMA-Factory's v1 (config/v1_format.h)
  bool rows_have_pictures = false;  // no key: set for a caller's own rows, without data sets
};

}  // namespace longspan
