#include "longspan/train/reference_cache.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "longspan/base/number_text.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/differentiable.h"
#include "longspan/data/loader.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/liveness/agreement.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"
#include "longspan/train/reference_key.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Returns rank 0's text on every rank. It is as long as the data set, so only rank 0 sends.
std::string text_of_rank_0(const Group& world, const std::string& text, at::Device device) {
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong).to(device);
  world.broadcast_(length);
  at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (world.rank() == 0) std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  bytes = bytes.to(device);
  world.broadcast_(bytes);
  bytes = bytes.cpu();
  const uint8_t* const begin = bytes.const_data_ptr<uint8_t>();
  return {begin, begin + bytes.numel()};
}

/// Returns a checksum of the exact numbers, the example's index and the key.
std::string digest_of(const std::string& key, size_t example, const std::vector<double>& logps) {
  const std::string whose = fmt::format("{} {} {}\n", key, example, logps.size());
  Xxh64 hash;
  hash.add(whose.data(), whose.size());
  hash.add(logps.data(), logps.size() * sizeof(double));
  return fmt::format("{:016x}", hash.value());
}

struct Entry {
  size_t example = 0;
  std::vector<double> logps;
  bool has_checksum = false;  // older versions wrote none
};

/// Returns nullopt for a damaged line.
std::optional<Entry> entry_from(const std::string& key, const std::string& line) {
  const std::optional<Json> json = try_parse_json(line);
  if (!json) return std::nullopt;
  try {
    const JsonObject object(*json, "");
    Entry entry{.example = static_cast<size_t>(object.whole("example", 0, INT64_MAX)),
                .logps = object.get<std::vector<double>>("logps"),
                .has_checksum = json->contains("xxh64")};
    if (entry.has_checksum &&
        object.get<std::string>("xxh64") != digest_of(key, entry.example, entry.logps)) {
      return std::nullopt;
    }
    if (!std::ranges::all_of(entry.logps, [](double logp) { return std::isfinite(logp); })) {
      return std::nullopt;
    }
    return entry;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

struct CachedLines {
  std::string text;
  int64_t num_broken = 0, num_without_checksum = 0;
};

/// Returns the intact lines, as far as can be checked. An incomplete last line, left by a killed
/// run, gives no warning.
CachedLines whole_lines(const std::string& path, const std::string& key,
                        const ExampleSet& examples) {
  CachedLines cached;
  std::optional<InputFile> file = InputFile::open_if_there(path, "reference log-probabilities");
  if (!file) return cached;
  LineReader lines(std::move(*file));
  for (std::string line; lines.next(line);) {
    const auto entry = entry_from(key, line);
    if (entry && entry->example < static_cast<size_t>(examples.size()) &&
        entry->logps.size() ==
            examples.example(static_cast<int64_t>(entry->example))->documents.size()) {
      cached.text += line + "\n";
      if (!entry->has_checksum) ++cached.num_without_checksum;
    } else if (!lines.ended_with_file()) {
      ++cached.num_broken;
    }
  }
  return cached;
}

void append(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "ab");
  bool written = file != nullptr;
  if (file != nullptr) {
    written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    written = (std::fclose(file) == 0) && written;
  }
  if (!written) {
    throw UserError(fmt::format("{}: cannot be written ({}). {}", path, std::strerror(errno),
                                remedy_for(errno)));
  }
}

}  // namespace

std::string reference_line(const std::string& key, size_t example,
                           const std::vector<double>& logps) {
  return Json{{"example", example}, {"logps", logps}, {"xxh64", digest_of(key, example, logps)}}
             .dump() +
         "\n";
}

std::optional<ReferenceTable> precompute_reference(
    const ReferenceJob& job, const std::function<std::unique_ptr<Reference>()>& make_reference,
    const Events& events) {
  const Mesh& mesh = job.mesh;
  const Group& world = mesh.world;
  const bool is_main = world.rank() == 0;
  // Rank 0 reads the file and sends it, since machines need not share a disk.
  std::string key, found;
  std::string path;
  all_or_none(world, [&] {
    if (!is_main) return;
    key = reference_key(job.settings, job.examples);
    path = fmt::format("{}/reference_logps_{}.jsonl", job.output_dir, key);
    CachedLines cached = whole_lines(path, key, job.examples);
    found = std::move(cached.text);
    if (cached.num_broken > 0) {
      events.say(fmt::format("warning: {} of {} {} damaged, and computed again.",
                             counted(cached.num_broken, "line"), path,
                             cached.num_broken == 1 ? "is" : "are"));
    }
    if (cached.num_without_checksum > 0) {
      events.say(fmt::format(
          "{} of {} {} written by an older version: the values are used without a check, since "
          "there are no checksums.",
          counted(cached.num_without_checksum, "line"), path,
          cached.num_without_checksum == 1 ? "was" : "were"));
    }
    write_file_atomically(path, found);
  });
  key = world.gather_text(key)[0];
  found = text_of_rank_0(world, found, job.device);
  ReferenceTable table;
  const auto take = [&](const std::string& lines) {
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line);) {
      if (auto entry = entry_from(key, line)) {
        table[static_cast<int64_t>(entry->example)] = std::move(entry->logps);
      }
    }
  };
  take(found);
  std::vector<int64_t> missing;
  for (int64_t i = 0; i < job.examples.size(); ++i) {
    if (!table.contains(i)) missing.push_back(i);
  }
  events.say(fmt::format("Reference log-probabilities of {}, {} of them kept from before{}",
                         counted(job.examples.size(), "example"), with_commas(std::ssize(table)),
                         is_main ? fmt::format(" in {}", path) : ""));

  std::unique_ptr<Reference> reference;
  all_or_none(world, [&] {
    if (!missing.empty()) reference = make_reference();
  });
  const Loader loader(std::ssize(missing), job.settings.optimization.per_device_train_batch_size,
                      mesh.data.rank(), mesh.data.size(), /*shuffle=*/false, /*seed=*/0);
  const Documents which =
      job.settings.preferences.pref_share_prompt ? Documents::kPairs : Documents::kAll;
  const SumOver over_row = [&](const at::Tensor& x) { return sum_over(x, mesh.sequence); };
  Progress progress{.total_steps = loader.num_batches()};
  if (!missing.empty()) events.tell(Stepped{progress, kNone});
  const auto start = std::chrono::steady_clock::now();
  for (int64_t batch = 0; batch < loader.num_batches(); ++batch) {
    std::string lines;
    std::vector<std::pair<int64_t, double>> broken;
    std::vector<int64_t> places;
    for (const int64_t i : loader.rows(/*epoch=*/0, batch)) places.push_back(missing[i]);
    if (!places.empty() || job.idle_rows) {
      const Row row = make_row(draw(job.examples, places), which, job.attention, job.device);
      const at::Tensor logps_D = reference->document_logprobs(row, over_row).cpu().contiguous();
      const double* logps = logps_D.const_data_ptr<double>();
      for (size_t example = 0; example < places.size(); ++example) {
        const int64_t number = places[example];
        const size_t size = row.examples[example]->documents.size();
        for (size_t i = 0; i < size; ++i) {
          if (!std::isfinite(logps[i])) broken.emplace_back(number, logps[i]);
        }
        if (mesh.sequence.rank() == 0) {
          lines += reference_line(key, static_cast<size_t>(number), {logps, logps + size});
        }
        logps += size;
      }
      progress.num_tokens += row.num_tokens() * mesh.data.size();
    }
    all_or_none(world, [&] {
      if (broken.empty()) return;
      throw UserError(fmt::format(
          "The reference model gives {} as the log-probability of an answer of example {} "
          "(counted from 0, training before evaluation). Look at its weights and at that row.",
          number_text(broken[0].second), broken[0].first));
    });
    const std::string flag = job.stops() ? "!" : ".";
    std::string all;
    bool interrupted = false;
    for (const std::string& text : world.gather_text(flag + lines)) {
      interrupted = interrupted || text[0] == '!';
      all += text.substr(1);
    }
    take(all);
    all_or_none(world, [&] {
      if (is_main) append(path, all);
    });
    if (interrupted) {
      events.tell(StepsEnded{});
      return std::nullopt;
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    progress.step = batch + 1;
    progress.num_computed_tokens = progress.num_tokens;
    progress.elapsed_seconds = passed.count();
    events.tell(Stepped{progress, kNone});
  }
  events.tell(StepsEnded{});
  return table;
}

}  // namespace longspan
