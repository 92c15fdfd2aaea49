#include "longspan/train/policy_folders.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "longspan/files/atomic_file.h"
#include "longspan/files/written_names.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/saving/sharded_saving.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char *kVersion = "version-", *kUnfinishedPolicy = ".policy.partial";

}  // namespace

PolicyFolders::PolicyFolders(Session& session, const Group& world, Notices& notices,
                             const std::optional<SavedChat>& chat, std::string folder)
    : session_(session),
      world_(world),
      notices_(notices),
      saver_(session.saver(chat)),
      folder_(std::move(folder)) {}

std::string PolicyFolders::path_of(int64_t version) const {
  return fmt::format("{}/{}{}", folder_, kVersion, version);
}

std::string PolicyFolders::absolute_path_of(int64_t version) const {
  return fs::absolute(path_of(version)).lexically_normal();
}

void PolicyFolders::remove_earlier() const {
  std::vector<std::string> earlier;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kVersion)) earlier.push_back(entry.path());
  }
  for (const std::string& path : earlier) remove_own_folder(path);
}

std::string PolicyFolders::write(int64_t version) {
  const bool is_main = world_.rank() == 0;
  const std::string path = fmt::format("{}/{}", folder_, kUnfinishedPolicy);
  ShardedParameters* sharded = session_.sharded_parameters();
  std::optional<TemporaryFolder> temporary;
  all_or_none_patiently(world_, notices_, [&] {
    if (!is_main) return;
    on_disk(folder_, [&] { fs::create_directories(folder_); });
    if (std::exchange(is_first_, false)) remove_earlier();
    temporary.emplace(path);
    if (sharded == nullptr) saver_.write_model(path, session_.parameters());
  });
  if (sharded != nullptr) {
    write_sharded_model(path, saver_.model(), *sharded, world_, notices_);
  }
  std::string written;
  all_or_none_patiently(world_, notices_, [&] {
    if (!is_main) return;
    on_disk(folder_, [&] {
      remove_own_folder(path_of(version));
      sync_folder(path);
      fs::rename(path, path_of(version));
      sync_folder(folder_);
      written = absolute_path_of(version);
    });
  });
  return written;
}

void PolicyFolders::remove(int64_t version) const { remove_own_folder(path_of(version)); }

}  // namespace longspan
