#include "longspan/comm/beat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace longspan {
namespace {

constexpr size_t kMostNamed = 4;

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string name_of(int rank, const Beat& beat) {
  return fmt::format("Rank {} (host {}, process {})", rank, beat.host, beat.process);
}

}  // namespace

std::string text_of(const Beat& beat) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", beat.count, one_line(beat.host),
                     one_line(beat.machine), beat.process, beat.step, one_line(beat.doing),
                     static_cast<int>(beat.ending), one_line(beat.reason));
}

std::optional<Beat> beat_from(const std::string& text) {
  std::istringstream lines(text);
  Beat beat;
  int ending = 0;
  const auto next = [&](std::string& line) { return static_cast<bool>(std::getline(lines, line)); };
  std::string count, process, step, last;
  if (!next(count) || !next(beat.host) || !next(beat.machine) || !next(process) || !next(step) ||
      !next(beat.doing) || !next(last)) {
    return std::nullopt;
  }
  next(beat.reason);
  std::istringstream numbers(count + " " + process + " " + step + " " + last);
  if (!(numbers >> beat.count >> beat.process >> beat.step >> ending)) return std::nullopt;
  beat.ending = static_cast<Beat::Ending>(ending);
  return beat;
}

ProcessState state_of_process(const Beat& beat, const std::string& own_machine) {
  if (beat.machine != own_machine) return ProcessState::kUnknown;
  std::ifstream file(fmt::format("/proc/{}/stat", beat.process));
  std::string text;
  if (!std::getline(file, text)) {
    // Nothing is known where /proc is not mounted, or of another container's processes.
    return std::filesystem::exists("/proc/self/stat") ? ProcessState::kGone
                                                      : ProcessState::kUnknown;
  }
  const size_t name_ends = text.rfind(") ");
  const char state = name_ends == std::string::npos ? '?' : text[name_ends + 2];
  if (state == 'T' || state == 't') return ProcessState::kStopped;
  if (state == 'Z' || state == 'X') return ProcessState::kGone;
  return ProcessState::kRunning;
}

std::string blame(int rank, const std::optional<Beat>& earlier, const std::optional<Beat>& later,
                  const std::string& own_machine) {
  if (!later) return fmt::format("Rank {} has never given a sign of life.", rank);
  const std::string who = name_of(rank, *later);
  switch (later->ending) {
    case Beat::Ending::kFailed:
      return fmt::format("{} has ended, in {}: {}", who, later->doing, later->reason);
    case Beat::Ending::kFinished:
    case Beat::Ending::kLost:
      return "";
    case Beat::Ending::kNone:
      break;
  }
  const ProcessState state = state_of_process(*later, own_machine);
  if (state == ProcessState::kGone) {
    return fmt::format(
        "{} has ended without a word, as when it is killed (by hand, by the system when memory "
        "runs "
        "out, by a crash); its last sign of life was in {}.",
        who, later->doing);
  }
  if (state == ProcessState::kStopped) {
    return fmt::format("{} is stopped (SIGSTOP, or a debugger), in {}.", who, later->doing);
  }
  if (!earlier || later->count != earlier->count) return "";
  return fmt::format(
      "{} is silent; its last sign of life was in {}. The process has ended or hangs, or its "
      "machine, or the network to it.",
      who, later->doing);
}

std::string diagnosis_of(const std::vector<std::optional<Beat>>& earlier,
                         const std::vector<std::optional<Beat>>& later, int own_rank,
                         const std::string& own_machine) {
  std::vector<std::string> blamed;
  for (int rank = 0; rank < static_cast<int>(later.size()); ++rank) {
    if (rank == own_rank) continue;
    std::string sentence = blame(rank, earlier[rank], later[rank], own_machine);
    if (!sentence.empty()) blamed.push_back(std::move(sentence));
  }
  if (!blamed.empty()) {
    const size_t more = blamed.size() > kMostNamed ? blamed.size() - kMostNamed : 0;
    blamed.resize(std::min(blamed.size(), kMostNamed));
    return fmt::format("{}{}", fmt::join(blamed, " "),
                       more > 0 ? fmt::format(" And {} more.", more) : "");
  }
  int64_t first = INT64_MAX, last = 0;
  int slowest = 0;
  for (int rank = 0; rank < static_cast<int>(later.size()); ++rank) {
    last = std::max(last, later[rank]->step);
    if (later[rank]->step >= first) continue;
    first = later[rank]->step;
    slowest = rank;
  }
  if (first < last) {
    return fmt::format("All ranks live; {} is behind: it is in {}, where others are at step {}.",
                       name_of(slowest, *later[slowest]), later[slowest]->doing, last);
  }
  return fmt::format("All ranks live, and are in {}.", later[slowest]->doing);
}

}  // namespace longspan
