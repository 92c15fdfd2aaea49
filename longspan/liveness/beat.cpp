#include "longspan/liveness/beat.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "longspan/files/process_identity.h"
#include "longspan/liveness/stall_detector.h"

namespace longspan {
namespace {

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

/// Returns the beginning of a file of /proc; "" where it cannot be read.
std::string proc_text(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  char text[512];
  const ssize_t length = read(descriptor, text, sizeof(text));
  close(descriptor);
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : "";
}

std::string name_of(int rank, const Beat& beat) {
  return fmt::format("Rank {} (host {}, process {})", rank, beat.host, beat.process);
}

}  // namespace

Beat own_beat(const std::string& doing) {
  Beat beat;
  beat.host = own_host();
  beat.machine = own_machine();
  beat.process = getpid();
  beat.doing = doing;
  return beat;
}

void has_been_in(std::optional<Beat>& beat, int64_t step, const std::string& doing) {
  if (!beat || beat->step >= step) return;
  beat->step = step;
  beat->doing = doing;
}

std::string text_of(const Beat& beat) {
  std::string collectives;
  for (const auto& [group, count] : beat.collectives) {
    collectives += fmt::format("{} {} ", group, count);
  }
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{} {} {}\n{}", beat.count,
                     one_line(beat.host), one_line(beat.machine), beat.process, beat.step,
                     one_line(beat.doing), static_cast<int>(beat.ending), one_line(beat.reason),
                     beat.times.steps, beat.times.seconds, beat.times.waited, collectives);
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
  std::string times, collectives, group;
  next(times);
  next(collectives);
  std::istringstream words(collectives);
  while (words >> group) {
    int64_t started = 0;
    if (!(words >> started) || !beat.collectives.emplace(group, started).second) {
      return std::nullopt;
    }
  }
  std::istringstream numbers(count + " " + process + " " + step + " " + last + " " + times);
  if (!(numbers >> beat.count >> beat.process >> beat.step >> ending)) return std::nullopt;
  if (!(numbers >> beat.times.steps >> beat.times.seconds >> beat.times.waited)) {
    return std::nullopt;
  }
  if (ending < 0 || ending > static_cast<int>(Beat::Ending::kFailed)) return std::nullopt;
  beat.ending = static_cast<Beat::Ending>(ending);
  return beat;
}

ProcessState state_of_process(const Beat& beat, const std::string& own_machine) {
  if (own_machine.empty() || beat.machine != own_machine || beat.process <= 0) {
    return ProcessState::kUnknown;
  }
  const auto is_gone = [&] {
    return kill(static_cast<pid_t>(beat.process), 0) != 0 && errno == ESRCH;
  };
  if (is_gone()) return ProcessState::kGone;
  const std::string text = proc_text(fmt::format("/proc/{}/stat", beat.process));
  // An unreadable process lives, unless it has ended meanwhile: /proc may not be mounted, or this
  // process may have no free descriptor.
  if (text.empty()) return is_gone() ? ProcessState::kGone : ProcessState::kUnknown;
  const size_t name_ends = text.rfind(") ");
  const char state =
      name_ends == std::string::npos || name_ends + 2 >= text.size() ? '?' : text[name_ends + 2];
  if (state == 'T' || state == 't') return ProcessState::kStopped;
  if (state == 'Z' || state == 'X') return ProcessState::kGone;
  return ProcessState::kRunning;
}

bool has_left(const Beat& beat, const std::string& own_machine) {
  // A rank with Ending::kAsks still reads the diagnosis.
  return (beat.ending != Beat::Ending::kNone && beat.ending != Beat::Ending::kAsks) ||
         state_of_process(beat, own_machine) == ProcessState::kGone;
}

std::string blame(int rank, const std::optional<Beat>& earlier, const std::optional<Beat>& later,
                  const std::string& own_machine) {
  if (!later) return fmt::format("Rank {} has never given a sign of life.", rank);
  const std::string who = name_of(rank, *later);
  switch (later->ending) {
    case Beat::Ending::kFailed:
      return fmt::format("{} has ended, in {}: {}", who, later->doing, later->reason);
    case Beat::Ending::kFinished:
    case Beat::Ending::kAsks:
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

bool is_clear_at_once(const std::vector<std::optional<Beat>>& beats, int own_rank,
                      const std::string& own_machine) {
  for (int rank = 0; rank < static_cast<int>(beats.size()); ++rank) {
    if (rank == own_rank || !beats[rank]) continue;
    if (!blame(rank, std::nullopt, beats[rank], own_machine).empty()) return true;
  }
  return false;
}

std::string blamed_of(const std::vector<std::optional<Beat>>& earlier,
                      const std::vector<std::optional<Beat>>& later, int own_rank,
                      const std::string& own_machine) {
  std::vector<std::string> blamed;
  for (int rank = 0; rank < static_cast<int>(later.size()); ++rank) {
    if (rank == own_rank) continue;
    std::string sentence = blame(rank, earlier[rank], later[rank], own_machine);
    if (!sentence.empty()) blamed.push_back(std::move(sentence));
  }
  const size_t more = blamed.size() > kMostNamed ? blamed.size() - kMostNamed : 0;
  blamed.resize(std::min(blamed.size(), kMostNamed));
  return fmt::format("{}{}", fmt::join(blamed, " "),
                     more > 0 ? fmt::format(" And {} more.", more) : "");
}

std::string diagnosis_of(const std::vector<std::optional<Beat>>& earlier,
                         const std::vector<std::optional<Beat>>& later, int own_rank,
                         const std::string& own_machine) {
  if (std::string blamed = blamed_of(earlier, later, own_rank, own_machine); !blamed.empty()) {
    return blamed;
  }
  if (const std::string late = stragglers_of(later); !late.empty()) {
    return fmt::format("All ranks live. {}", late);
  }
  int64_t last = INT64_MIN;
  std::optional<int> slowest;
  for (int rank = 0; rank < static_cast<int>(later.size()); ++rank) {
    if (!later[rank]) continue;  // the store has lost this rank's own beats
    last = std::max(last, later[rank]->step);
    if (!slowest || later[rank]->step < later[*slowest]->step) slowest = rank;
  }
  if (!slowest) return "All ranks live.";
  const Beat& behind = *later[*slowest];
  if (behind.step < last) {
    return fmt::format("All ranks live; {} is behind: it is in {}, where others are at step {}.",
                       name_of(*slowest, behind), behind.doing, last);
  }
  return fmt::format("All ranks live, and are in {}.", behind.doing);
}

}  // namespace longspan
