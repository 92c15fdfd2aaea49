#include "longspan/saving/read_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <sstream>

#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"

namespace longspan {
namespace {

constexpr double kWorthTelling = 5.0;  // seconds

constexpr const char* kNotRead = "-";  // instead of a digest

struct Block {
  std::string path;
  int64_t number = 0;
  int64_t size = 0, mtime_ns = 0;  // of the file, as seen by rank 0
};

/// Returns a file to read as text: size, time and path, ended by a zero, since a path may hold any
/// other byte.
std::string line_of(const RunFile& file) {
  return fmt::format("{} {} {}", file.stamp.size, file.stamp.mtime_ns, file.path) + '\0';
}

/// Returns all blocks of these files.
std::vector<Block> blocks_of(const std::string& lines) {
  std::vector<Block> blocks;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line, '\0');) {
    std::istringstream words(line);
    Block block;
    words >> block.size >> block.mtime_ns;
    words.ignore();
    block.path = line.substr(static_cast<size_t>(words.tellg()));
    for (; block.number < num_digest_blocks(block.size); ++block.number) blocks.push_back(block);
  }
  return blocks;
}

/// Returns kNotRead if the file is missing or differs, as on another machine.
std::string digest_text_of(const Block& block) {
  try {
    const FileStamp stamp = stamp_of_file(block.path);
    if (stamp.size != block.size || stamp.mtime_ns != block.mtime_ns) return kNotRead;
    return fmt::format("{}", digest_of_block(block.path, block.number));
  } catch (const UserError&) {
    return kNotRead;
  }
}

const RunFile* find_known(const RunContents& known, const RunFile& file) {
  const auto found = std::ranges::find_if(known, [&](const RunFile& one) {
    return one.digest && one.path == file.path && one.stamp == file.stamp;
  });
  return found == known.end() ? nullptr : &*found;
}

}  // namespace

RunContents read_contents(const ContentSettings& settings, const Group& world, Notices& notices,
                          const RunContents& known, Events& events) {
  const auto start = std::chrono::steady_clock::now();
  RunContents files;
  std::vector<const RunFile*> unread;
  std::string list;
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    files = files_of_run(settings);
    std::set<std::string> listed;
    for (RunFile& file : files) {
      file.digest = std::nullopt;
      try {
        file.stamp = stamp_of_file(file.path);
      } catch (const UserError&) {
        continue;
      }
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
      mine += digest_text_of(blocks[i]) + "\n";
    }
  });
  std::string all;
  for (const std::string& text : world.gather_text(mine)) all += text;
  std::vector<std::string> texts;  // one per block
  std::istringstream words(all);
  for (std::string word; words >> word;) texts.push_back(std::move(word));
  all_or_none_patiently(world, notices, [&] {
    if (world.rank() != 0) return;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i] == kNotRead) texts[i] = digest_text_of(blocks[i]);
    }
  });
  if (world.rank() != 0) return {};

  std::map<std::string, uint64_t> digests;
  int64_t num_bytes = 0;
  auto next = texts.begin();
  for (const RunFile* file : unread) {
    const auto end = next + num_digest_blocks(file->stamp.size);
    if (std::find(next, end, kNotRead) == end) {
      std::vector<uint64_t> of_blocks;
      for (auto text = next; text != end; ++text) of_blocks.push_back(std::stoull(*text));
      digests[file->path] = digest_from_blocks(of_blocks);
      num_bytes += file->stamp.size;
    }
    next = end;
  }
  std::set<std::string> not_read;
  for (RunFile& file : files) {
    if (const auto read = digests.find(file.path); read != digests.end()) {
      file.digest = read->second;
    } else if (!file.digest && not_read.insert(file.path).second) {
      events.say(
          fmt::format("{} ({}) cannot be read by rank 0: whether it changes will not be known when "
                      "the run goes "
                      "on.",
                      file.path, name_of(file.role)));
    }
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  if (passed.count() > kWorthTelling) {
    events.say(fmt::format(
        "Read {:.1f} GB of model and data files in {:.0f} s, to know them again when the run goes "
        "on. What has not changed until then is not read again.",
        static_cast<double>(num_bytes) / 1e9, passed.count()));
  }
  return files;
}

}  // namespace longspan
