// Encoded rows that later runs read: of the key tokenized_path, or in the user's cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/example_file.h"
#include "longspan/files/folder_lock.h"
#include "longspan/report/events.h"
#include "longspan/train/rows_key.h"

namespace longspan {

struct Stage;

struct RowCachePlace {
  std::string folder;
  bool is_given = false;  // by tokenized_path: rows of another key are refused
  bool overwrites = false;
};

/// Returns the place of the run's rows; nullopt: nothing is kept. In the user's cache: rows of data
/// files with at least kFewestCachedBytes, where the disk has room and no template writes the time.
inline constexpr int64_t kFewestCachedBytes = int64_t{16} << 20;
/// Bytes of the rows for each byte of data files, at most, for data without compression.
inline constexpr int64_t kMostGrowth = 4;
std::optional<RowCachePlace> row_cache_place(const DataSettings& config, const RowsKey& key);

/// Returns the rules of kept rows, by the model and the stage.
ExampleRules rules_of_rows(const ModelConfig& model, const Stage& stage);

class RowCache;
/// Returns the place where the rows of a run are kept; null: nowhere. `keys`: as of rows_key().
/// Throws UserError.
std::unique_ptr<RowCache> row_cache(const RowSettings& config, const ModelConfig& model,
                                    const std::vector<std::pair<std::string, std::string>>& keys);

/// A folder with the file of one key. One process at a time writes there.
class RowCache {
 public:
  RowCache(RowCachePlace place, RowsKey key);

  const RowCachePlace& place() const { return place_; }

  /// Returns the file of the rows. nullopt: there is none, and until the end of this object or
  /// keep() no other process may write one. Throws UserError: a given folder has rows of another
  /// key, or other files. While another process writes, waits; or, with `waits` false, throws
  /// FolderBusyError.
  std::optional<InputFile> find(const Events& events, bool waits = true);
  /// Text for the beginning of the file's note. Throws UserError if a file of the key has changed.
  std::string key_text();
  /// For a process that has read all files of the key, and encodes them later. Throws UserError if
  /// one has changed; keep() then does not look at them again.
  void require_unchanged();
  /// Gives the complete file its name, and lets other processes write. If a file of the key has
  /// changed, or the file cannot get its name, throws UserError for a given folder, and otherwise
  /// keeps nothing. In the user's cache, removes files that no run has read for kUnusedDays.
  void keep(const ExampleFileWriter& file, const Events& events);
  static constexpr int kUnusedDays = 30;
  /// Lets other processes write. No-op without the lock.
  void release() { lock_.reset(); }

 private:
  std::string path() const;
  /// `told`: gets a line on rows that are not used; may be null.
  std::optional<InputFile> own_file(const Events* told);
  void require_own_folder() const;
  void remove_unused() const;

  RowCachePlace place_;
  RowsKey key_;
  bool is_unchanged_ = false;  // the files of the key
  std::unique_ptr<FolderLock> lock_;
};

}  // namespace longspan
