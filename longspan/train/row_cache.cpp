#include "longspan/train/row_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/data/packed_bytes.h"
#include "longspan/files/file_digest.h"
#include "longspan/files/left_temporary.h"
#include "longspan/files/program_library.h"
#include "longspan/files/user_cache.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRowsFile = "rows.longspan";
constexpr const char* kWhat = "file of encoded rows";
constexpr std::chrono::milliseconds kBetweenLooks{200};

/// Returns the number of documents of an example; nullopt: packing decides.
std::optional<int64_t> num_documents_of(RowKind kind) {
  switch (kind) {
    case RowKind::kPair:
    case RowKind::kUnpairedPreference:
      return 2;
    case RowKind::kQuestion:
      return 1;
    case RowKind::kText:
    case RowKind::kAnswer:
      return std::nullopt;
  }
  throw std::logic_error("rows of no kind");
}

/// Returns whether the folder, which need not exist yet, can be written to, with room for the rows.
bool has_room(fs::path folder, int64_t num_data_bytes) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (folder.has_relative_path() && !fs::exists(folder, error)) folder = folder.parent_path();
  if (::access(folder.c_str(), W_OK) != 0) return false;
  const fs::space_info space = fs::space(folder, error);
  return !error && static_cast<int64_t>(space.available / kMostGrowth) >= num_data_bytes;
}

/// Returns the name of a key's folder in the user's cache: of all but the contents of files, so
/// that a changed file's rows replace the old ones. Another build of the program may encode
/// differently.
std::string name_of(const RowsKey& key) {
  std::string text;
  for (const auto& [name, value] : key.values) text += fmt::format("{}={}\n", name, value);
  for (const RowsFile& file : key.files) text += fmt::format("{} {}\n", file.what, file.path);
  const FileStamp program = stamp_of_file(program_file());
  text += fmt::format("{} {}", program.size, program.mtime_ns);
  return fmt::format("{:016x}", fnv1a(text));
}

}  // namespace

std::optional<RowCachePlace> row_cache_place(const DataSettings& config, const RowsKey& key) {
  if (!config.tokenized_path.empty()) {
    return RowCachePlace{config.tokenized_path, /*is_given=*/true, config.overwrite_cache};
  }
  if (key.num_data_bytes < kFewestCachedBytes || key.writes_time) return std::nullopt;
  const fs::path cache = config.cache_dir.empty() ? user_cache_folder() : config.cache_dir;
  if (cache.empty()) return std::nullopt;
  const fs::path folder = cache / "rows" / name_of(key);
  if (!has_room(folder, key.num_data_bytes)) return std::nullopt;
  return RowCachePlace{folder.string(), /*is_given=*/false, config.overwrite_cache};
}

ExampleRules rules_of_rows(const ModelConfig& model, const Stage& stage) {
  return {model.spec.vocab_size, num_documents_of(stage.rows)};
}

std::unique_ptr<RowCache> row_cache(const RowSettings& config, const ModelConfig& model,
                                    const std::vector<std::pair<std::string, std::string>>& keys) {
  if (config.data.dataset.empty() || config.data.streaming) return nullptr;
  RowsKey key = rows_key(config, model, keys);
  std::optional<RowCachePlace> place = row_cache_place(config.data, key);
  if (!place) return nullptr;
  return std::make_unique<RowCache>(*std::move(place), std::move(key));
}

RowCache::RowCache(RowCachePlace place, RowsKey key)
    : place_(std::move(place)), key_(std::move(key)) {}

std::string RowCache::path() const { return (fs::path(place_.folder) / kRowsFile).string(); }

std::optional<InputFile> RowCache::find(const Events& events, bool waits) {
  for (bool has_waited = false;; has_waited = true) {
    if (!place_.overwrites) {
      if (auto file = own_file(/*told=*/nullptr)) return file;
    }
    try {
      lock_ = std::make_unique<FolderLock>(place_.is_given ? "tokenized_path" : "cache_dir",
                                           place_.folder);
    } catch (const FolderBusyError&) {
      if (!waits) throw;
      if (!has_waited) {
        events.say(fmt::format("Another run encodes the data sets into {}: this run waits for it.",
                               place_.folder));
      }
      std::this_thread::sleep_for(kBetweenLooks);
      continue;
    }
    // Another process may have written the file before this process got the lock.
    if (!place_.overwrites) {
      if (auto file = own_file(&events)) {
        lock_.reset();
        return file;
      }
    }
    require_own_folder();
    remove_left_temporaries(place_.folder, /*folder_is_ours=*/true);
    return std::nullopt;
  }
}

std::optional<InputFile> RowCache::own_file(const Events* told) {
  std::optional<InputFile> file = InputFile::open_if_there(path(), kWhat);
  if (!file) return std::nullopt;
  std::string other;
  try {
    const std::string note =
        ExampleFile(InputFile::of_descriptor(::fcntl(file->descriptor(), F_DUPFD_CLOEXEC, 0),
                                             path(), kWhat),
                    ExampleRules())
            .note();
    UnpackedBytes from(note);
    other = difference(rows_key_from(std::string(from.next_text())), key_);
  } catch (const UserError& error) {
    if (place_.is_given) throw;
    other = error.what();
  } catch (const std::out_of_range&) {
    other = "a key that is not whole";
  }
  if (other.empty()) {
    // Shows that the file is used.
    static_cast<void>(::futimens(file->descriptor(), nullptr));
    return file;
  }
  if (place_.is_given) {
    throw UserError(fmt::format(
        "tokenized_path {}: its rows were made with {}. Set overwrite_cache: true to encode the "
        "data sets again, or name another folder.",
        place_.folder, other));
  }
  if (told != nullptr) {
    told->say(fmt::format("The encoded rows in {} are replaced: they were made with {}.",
                          place_.folder, other));
  }
  return std::nullopt;
}

void RowCache::require_own_folder() const {
  if (!place_.is_given) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(place_.folder)) {
    const std::string name = entry.path().filename().string();
    if (name == kRowsFile || name == kLockFile || temporary_from(name)) continue;
    // Files without a name, of another process, on disks that give them one.
    if (name.starts_with(".nfs") || name.starts_with(".fuse_hidden") ||
        name.starts_with(".longspan-")) {
      continue;
    }
    const bool is_of_datasets = name == "dataset_dict.json" || name == "state.json";
    throw UserError(fmt::format(
        "tokenized_path {}: the folder has {}{}, and no encoded rows of Longspan. Name a new "
        "folder.",
        place_.folder, name, is_of_datasets ? " of Hugging Face datasets" : ""));
  }
}

std::string RowCache::key_text() {
  complete(key_);
  return text_of(key_);
}

void RowCache::require_unchanged() {
  for (const RowsFile& one : key_.files) {
    if (stamp_of_file(one.path) == one.stamp) continue;
    throw UserError(fmt::format("{} was written while the run read it. Start again.", one.path));
  }
  is_unchanged_ = true;
}

void RowCache::keep(const ExampleFileWriter& file, const Events& events) {
  try {
    if (!is_unchanged_) require_unchanged();
    file.publish(path());
  } catch (const UserError& error) {
    if (place_.is_given) throw;
    lock_.reset();
    return events.say(fmt::format("The encoded rows are not kept: {}", error.what()));
  }
  lock_.reset();
  if (place_.is_given) {
    events.say(fmt::format(
        "The encoded rows are saved in {0}. Later runs with tokenized_path: {0} read them.",
        place_.folder));
    return;
  }
  events.say(fmt::format(
      "The encoded rows are kept in {} for later runs, as long as no {} days pass without one.",
      place_.folder, kUnusedDays));
  remove_unused();
}

void RowCache::remove_unused() const {
  std::error_code error;
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::days(kUnusedDays);
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(place_.folder).parent_path(), error)) {
    const fs::path file = entry.path() / kRowsFile;
    const auto used = fs::last_write_time(file, error);
    if (error || used > oldest) continue;
    // Processes that have the file open can still read it.
    fs::remove(file, error);
    fs::remove(entry.path(), error);  // where it is empty
  }
}

}  // namespace longspan
