#include "longspan/rollouts/rollout_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/rollouts/rollout_check.h"

namespace longspan {
namespace {

constexpr std::string_view kPurpose = "file of rollouts", kMark = "\xef\xbb\xbf";
constexpr int64_t kReadBytes = int64_t{1} << 20;

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

struct NumberedRollouts {
  std::vector<Rollout> rollouts;
  std::vector<int64_t> lines;               // of `rollouts`
  std::map<int64_t, std::string> problems;  // by line
  int64_t num_lines = 0;                    // without empty lines
};

NumberedRollouts parse_file(const std::string& path, const RolloutRules& rules) {
  NumberedRollouts parsed;
  LineReader lines(InputFile(path, kPurpose));
  std::string line;
  while (lines.next(line)) {
    if (is_blank_line(line)) continue;
    ++parsed.num_lines;
    try {
      parsed.rollouts.push_back(parse_rollout(line, path, lines.number(), rules));
      parsed.lines.push_back(lines.number());
    } catch (const UserError& error) {
      parsed.problems.emplace(lines.number(), error.what());
    }
  }
  return parsed;
}

/// Reads up to `size` bytes at an offset; returns fewer at the end of the file.
size_t read_at(const InputFile& file, char* to, size_t size, int64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t num_read = ::pread(file.descriptor(), to + done, size - done,
                                     static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) {
      throw UserError(
          fmt::format("cannot read the {} {}: {}", kPurpose, file.path(), std::strerror(errno)));
    }
    if (num_read == 0) break;
    done += static_cast<size_t>(num_read);
  }
  return done;
}

}  // namespace

std::vector<Rollout> read_rollouts(const std::string& path, const RolloutRules& rules,
                                   OnBadRow on_bad_row, std::vector<std::string>& notes) {
  NumberedRollouts parsed = parse_file(path, rules);
  if (parsed.num_lines == 0) throw UserError(fmt::format("{}: there are no rollouts in it", path));
  const std::vector<std::string> links = link_problems(parsed.rollouts);
  std::vector<Rollout> good;
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i].empty()) {
      good.push_back(std::move(parsed.rollouts[i]));
    } else {
      parsed.problems.emplace(parsed.lines[i], links[i]);
    }
  }
  BadRows bad;
  for (const auto& [line, problem] : parsed.problems) bad.add(problem);
  const std::string left_out = bad.settle(on_bad_row, path, parsed.num_lines);
  if (!left_out.empty()) notes.push_back(left_out);
  return good;
}

RolloutFollower::RolloutFollower(std::string path, RolloutRules rules, RolloutPosition begin)
    : path_(std::move(path)),
      rules_(rules),
      position_(begin),
      begin_(begin.offset),
      searched_(begin.offset) {}

void RolloutFollower::fail(const std::string& problem) const {
  throw UserError(fmt::format(
      "{}: {}, after {} bytes of it were read; a sampler may only append to it. Give the "
      "sampler a new file, and begin with that file.",
      path_, problem, position_.offset));
}

/// Returns whether there is a file.
bool RolloutFollower::open_or_check() {
  if (!file_) {
    file_ = InputFile::open_if_there(path_, kPurpose);
    if (!file_ && position_.offset == 0) return false;
    if (!file_) fail("the file is gone");
  }
  struct stat opened{}, named{};
  if (::fstat(file_->descriptor(), &opened) != 0) fail(std::strerror(errno));
  if (::stat(path_.c_str(), &named) != 0) {
    fail(errno == ENOENT ? "the file is gone" : std::strerror(errno));
  }
  if (opened.st_dev != named.st_dev || opened.st_ino != named.st_ino) {
    fail("another file has taken the name");
  }
  if (opened.st_size < position_.offset) {
    fail(fmt::format("the file was truncated to {} bytes", opened.st_size));
  }
  check_bytes_before();
  return true;
}

void RolloutFollower::check_bytes_before() {
  if (position_.offset > 0 && hash_before(position_.offset) != position_.hash) {
    fail("the file was written anew");
  }
}

uint64_t RolloutFollower::hash_before(int64_t offset) const {
  std::string bytes(std::min(offset, RolloutPosition::kHashedBytes), '\0');
  bytes.resize(read_at(*file_, bytes.data(), bytes.size(), offset - std::ssize(bytes)));
  return fnv1a(bytes);
}

/// Reads the file's bytes at `from`, the end of the buffer; returns false at the end of the file.
bool RolloutFollower::read_more(int64_t from) {
  const size_t before = buffer_.size();
  buffer_.resize(before + kReadBytes);
  const size_t num_read = read_at(*file_, buffer_.data() + before, kReadBytes, from);
  buffer_.resize(before + num_read);
  return num_read > 0;
}

bool RolloutFollower::next_line(std::string& line) {
  for (;;) {
    const size_t feed = buffer_.find('\n', static_cast<size_t>(searched_ - begin_));
    if (feed != std::string::npos) {
      const auto first = static_cast<size_t>(position_.offset - begin_);
      line.assign(buffer_, first, feed - first);
      position_.offset = searched_ = begin_ + static_cast<int64_t>(feed) + 1;
      ++position_.line;
      if (position_.line == 1 && line.starts_with(kMark)) line.erase(0, kMark.size());
      return true;
    }
    buffer_.erase(0, static_cast<size_t>(position_.offset - begin_));
    begin_ = position_.offset;
    searched_ = begin_ + std::ssize(buffer_);
    if (std::ssize(buffer_) > kMaxLineBytes) {
      fail(fmt::format("line {} has more than {} MiB", position_.line + 1, kMaxLineBytes >> 20));
    }
    if (!read_more(searched_)) return false;
  }
}

std::vector<Rollout> RolloutFollower::next(int64_t most, BadRows& bad) {
  std::vector<Rollout> rollouts;
  if (!open_or_check()) return rollouts;
  // The bytes after the position are read again: a sampler that stopped within a line may have
  // replaced the line.
  buffer_.clear();
  begin_ = searched_ = position_.offset;
  std::string line;
  while (std::ssize(rollouts) < most && next_line(line)) {
    if (is_blank_line(line)) continue;
    try {
      rollouts.push_back(parse_rollout(line, path_, position_.line, rules_));
    } catch (const UserError& error) {
      bad.add(error.what());
    }
  }
  if (position_.offset > 0) position_.hash = hash_before(position_.offset);
  return rollouts;
}

}  // namespace longspan
