#include "core.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "report.h"

namespace null_cuda {
namespace {

int64_t number_of(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::atoll(text) : otherwise;
}

/// Returns this rank's list of NULL_CUDA_COUNTS.
Settings::Counts counts_of_rank() {
  const char* const text = std::getenv("NULL_CUDA_COUNTS");
  if (text == nullptr) return {};
  char* at = nullptr;
  Settings::Counts counts{.bytes = std::strtoull(text, &at, 10)};
  std::string_view lists = at;
  if (lists.starts_with(':')) lists.remove_prefix(1);
  for (int64_t rank = number_of("RANK", 0); rank > 0; --rank) {
    const size_t end = lists.find(';');
    if (end != std::string_view::npos) lists.remove_prefix(end + 1);
  }
  for (const char* number = lists.data(); *number != '\0' && *number != ';'; number = at) {
    counts.numbers.push_back(std::strtoll(number, &at, 10));
    if (at == number) break;
    at += *at == ',' ? 1 : 0;
  }
  return counts;
}

constexpr const char* kNames[] = {"launches",   "waits",       "bytes",
                                  "calls",      "collectives", "collective_bytes",
                                  "card_bytes", "gemm_flops"};
constexpr size_t kNumCounted = std::size(kNames);

struct Counts {
  std::mutex mutex;
  std::map<std::string, int64_t, std::less<>> of[kNumCounted];
  int64_t launches = 0;
  std::vector<int64_t> launches_at_waits;

  static Counts& get() {
    static auto* const counts = new Counts;  // also for code that runs at exit
    return *counts;
  }
};

thread_local int chosen_device = 0;
std::atomic<int64_t> taken_at_load = 0;
std::atomic<bool> is_stuck = false;

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void write_report() {
  static const char* const folder = std::getenv("NULL_CUDA_REPORT");
  if (folder == nullptr) return;
  std::string text =
      "{\n\"rank\": " + std::to_string(number_of("RANK", 0)) + ",\n\"peak_bytes\": [";
  for (int device = 0; device < settings().num_devices; ++device) {
    text += (device > 0 ? ", " : "") + std::to_string(peak_bytes(device));
  }
  text += "],\n\"taken_at_last_load\": " + std::to_string(taken_at_load) +
          ",\n\"launches_at_waits\": [";
  Counts& counts = Counts::get();
  const std::lock_guard lock(counts.mutex);
  for (size_t i = 0; i < counts.launches_at_waits.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(counts.launches_at_waits[i]);
  }
  text += "]";
  for (size_t what = 0; what < kNumCounted; ++what) {
    text += ",\n" + quoted(kNames[what]) + ": {";
    const char* comma = "";
    for (const auto& [name, amount] : counts.of[what]) {
      text += comma + quoted(name) + ": " + std::to_string(amount);
      comma = ",\n  ";
    }
    text += "}";
  }
  text += "\n}\n";
  const std::string path = std::string(folder) + "/" + std::to_string(getpid()) + ".json";
  if (std::FILE* const file = std::fopen((path + ".new").c_str(), "w")) {
    std::fputs(text.c_str(), file);
    std::fclose(file);
    std::rename((path + ".new").c_str(), path.c_str());
  }
}

struct AtTheEnd {
  ~AtTheEnd() {
    if (Counts::get().launches > 0) write_report();
  }
} at_the_end;

}  // namespace

const Settings& settings() {
  static const Settings settings = [] {
    Settings made;
    made.num_devices = static_cast<int>(number_of("NULL_CUDA_DEVICES", 1));
    made.capability = static_cast<int>(number_of("NULL_CUDA_CAPABILITY", 90));
    made.memory = number_of("NULL_CUDA_MEMORY", 81920) << 20;
    made.num_multiprocessors = made.capability >= 90 ? 132 : 108;
    if (const char* const text = std::getenv("NULL_CUDA_MODULES")) {
      const std::string_view modules = text, kind = modules.substr(0, modules.find(':'));
      constexpr int kNoMemory = 2, kNoBinary = 209, kIllegalAddress = 700;  // of cuda.h
      made.error_of_modules = kind == "refused"  ? kNoBinary
                              : kind == "full"   ? kNoMemory
                              : kind == "broken" ? kIllegalAddress
                                                 : 0;
      if (kind.size() < modules.size()) made.modules_of = std::atoi(text + kind.size() + 1);
    }
    if (const char* const text = std::getenv("NULL_CUDA_REFUSED")) made.refused_kernels = text;
    if (const char* const text = std::getenv("NULL_CUDA_MILLISECONDS")) {
      made.milliseconds.clear();
      for (const char* at = text; *at != '\0'; at += *at == ',') {
        char* end = nullptr;
        made.milliseconds.push_back(std::strtof(at, &end));
        if (end == at) break;
        at = end;
      }
    }
    made.counts = counts_of_rank();
    return made;
  }();
  return settings;
}

void count(Counted what, std::string_view name, int64_t amount) {
  Counts& counts = Counts::get();
  const std::lock_guard lock(counts.mutex);
  auto& of = counts.of[static_cast<size_t>(what)];
  const auto known = of.find(name);
  (known != of.end() ? known : of.emplace(name, 0).first)->second += amount;
  if (what == Counted::kLaunches) counts.launches += amount;
}

void count_wait(std::string_view name) {
  count(Counted::kWaits, name);
  {
    Counts& counts = Counts::get();
    const std::lock_guard lock(counts.mutex);
    counts.launches_at_waits.push_back(counts.launches);
  }
  write_report();
  while (hangs()) pause();
}

void note_load(int64_t num_bytes) { taken_at_load = num_bytes; }

void hang() { is_stuck = true; }
bool hangs() { return is_stuck; }

void report() { write_report(); }

void complain(const std::string& text) {
  std::fprintf(stderr, "null CUDA: %s\n", text.c_str());
  count(Counted::kCalls, "complaints");
}

int current_device() { return chosen_device; }

bool choose_device(int device) {
  if (device < 0 || device >= settings().num_devices) return false;
  chosen_device = device;
  return true;
}

}  // namespace null_cuda
