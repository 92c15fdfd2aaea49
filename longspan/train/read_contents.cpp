#include "longspan/train/read_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <sstream>

#include "longspan/train/agreement.h"

namespace longspan {
namespace {

constexpr double kWorthTelling = 5.0;  // seconds

struct Block {
  std::string path;
  int64_t number = 0;
};

/// A file that is to be read, as text: the number of its blocks, its path, which may hold any other
/// byte, and a zero.
std::string line_of(const RunFile& file) {
  return fmt::format("{} {}", num_digest_blocks(file.stamp.size), file.path) + '\0';
}

/// All blocks of such files.
std::vector<Block> blocks_of(const std::string& lines) {
  std::vector<Block> blocks;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line, '\0');) {
    const size_t blank = line.find(' ');
    const int64_t num_blocks = std::stoll(line.substr(0, blank));
    for (int64_t i = 0; i < num_blocks; ++i) blocks.push_back({line.substr(blank + 1), i});
  }
  return blocks;
}

const RunFile* find_known(const RunContents& known, const RunFile& file) {
  const auto found = std::ranges::find_if(
      known, [&](const RunFile& one) { return one.path == file.path && one.stamp == file.stamp; });
  return found == known.end() ? nullptr : &*found;
}

}  // namespace

RunContents read_contents(const Config& config, const Group& world, Notices& notices,
                          const RunContents& known, Console& console) {
  const auto start = std::chrono::steady_clock::now();
  RunContents files;
  std::vector<const RunFile*> unread;
  std::string list;
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    files = files_of_run(config);
    std::set<std::string> listed;
    for (RunFile& file : files) {
      file.stamp = stamp_of_file(file.path);
      if (const RunFile* same = find_known(known, file)) {
        file.digest = same->digest;
      } else if (listed.insert(file.path).second) {
        unread.push_back(&file);
        list += line_of(file);
      }
    }
  });
  const std::vector<Block> blocks = blocks_of(world.gather_text(list)[0]);

  std::string mine;
  all_or_none_patiently(world, notices, [&] {
    const int64_t count = std::ssize(blocks), rank = world.rank(), size = world.size();
    for (int64_t i = count * rank / size; i < count * (rank + 1) / size; ++i) {
      mine += fmt::format("{}\n", digest_of_block(blocks[i].path, blocks[i].number));
    }
  });
  std::string all;
  for (const std::string& text : world.gather_text(mine)) all += text;
  if (world.rank() != 0) return {};

  std::istringstream numbers(all);
  std::map<std::string, uint64_t> digests;
  int64_t num_bytes = 0;
  for (const RunFile* file : unread) {
    std::vector<uint64_t> of_blocks(num_digest_blocks(file->stamp.size));
    for (uint64_t& digest : of_blocks) numbers >> digest;
    digests[file->path] = digest_from_blocks(of_blocks);
    num_bytes += file->stamp.size;
  }
  for (RunFile& file : files) {
    if (const auto read = digests.find(file.path); read != digests.end()) {
      file.digest = read->second;
    }
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  if (passed.count() > kWorthTelling) {
    console.say(fmt::format(
        "Read {:.1f} GB of model and data files in {:.0f} s, to know them again when the run goes "
        "on. What has not changed until then is not read again.",
        static_cast<double>(num_bytes) / 1e9, passed.count()));
  }
  return files;
}

}  // namespace longspan
