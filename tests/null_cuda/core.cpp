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

constexpr const char* kNames[] = {"launches", "waits",       "bytes",
                                  "calls",    "collectives", "collective_bytes"};
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
  std::string text = "{\n\"peak_bytes\": [";
  for (int device = 0; device < settings().num_devices; ++device) {
    text += (device > 0 ? ", " : "") + std::to_string(peak_bytes(device));
  }
  text += "],\n\"launches_at_waits\": [";
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
    const char* const modules = std::getenv("NULL_CUDA_MODULES");
    made.refuses_modules = modules != nullptr && std::string_view(modules) == "refused";
    if (const char* const text = std::getenv("NULL_CUDA_COUNTS")) {
      long long bytes = 0, count = 0, times = 0;
      if (std::sscanf(text, "%lld:%lld:%lld", &bytes, &count, &times) == 3) {
        made.counts = {static_cast<size_t>(bytes), count, times};
      }
    }
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
