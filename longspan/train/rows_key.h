// The key that says what encoded rows were made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/files/file_digest.h"
#include "longspan/train/run_data.h"

namespace longspan {

/// A file that rows are made of.
struct RowsFile {
  std::string what;  // "training data", "tokenizer.json", ...
  std::string path;  // absolute
  FileStamp stamp;
  std::optional<uint64_t> digest;  // as digest_from_blocks; nullopt: not computed yet
};

struct RowsKey {
  std::vector<std::pair<std::string, std::string>> values;
  std::vector<RowsFile> files;
  bool writes_time = false;    // the chat template may write the run's time into rows
  int64_t num_data_bytes = 0;  // of the data files
};

/// Returns the key of the run's rows, with stamps of files and without digests. `keys`: names and
/// values of configuration keys (row_settings). Throws UserError.
RowsKey rows_key(const RowSettings& config, const ModelConfig& model,
                 const std::vector<std::pair<std::string, std::string>>& keys);

/// Computes the missing digests. Throws UserError if a file has changed since its stamp.
void complete(RowsKey& key);

/// Returns the first difference for a sentence ("cutoff_len 2048 instead of 4096"); "": none. Takes
/// a file with equal path and stamp as unchanged, and computes digests of other files in `now`.
std::string difference(const RowsKey& then, RowsKey& now);

/// Convert to and from text. Reading throws UserError for a text that is no key. Values and files
/// only.
std::string text_of(const RowsKey& key);
RowsKey rows_key_from(const std::string& text);

}  // namespace longspan
