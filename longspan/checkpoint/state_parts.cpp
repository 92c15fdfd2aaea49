#include "longspan/checkpoint/state_parts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "longspan/base/user_error.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps = "steps";
constexpr const char* kMaster = "master";
constexpr std::string_view kAdapterPrefix = "base_model.model.";  // PEFT's

std::string name_of(const std::string& what, const StateSource& source) {
  return fmt::format("{} {} {} {}", what, source.parameter, source.begin, source.end);
}

/// The number of places from a matrix's first number to its last.
int64_t span_of(const StoredWeights& place) {
  int64_t span = 1;
  for (size_t i = 0; i < place.shape.size(); ++i) span += (place.shape[i] - 1) * place.strides[i];
  return span;
}

}  // namespace

std::string state_part_name(int number, int num_parts) {
  return fmt::format("{}/part-{:05}-of-{:05}.safetensors", kStateFolder, number, num_parts);
}

void write_state_part(const std::string& path, const std::vector<StateSource>& sources) {
  std::vector<SafetensorsWriter::Planned> planned;
  for (const StateSource& source : sources) {
    for (const auto& [what, dtype] : source.dtypes) {
      planned.push_back({name_of(what, source), dtype, {source.end - source.begin}});
    }
    planned.push_back({name_of(kSteps, source), at::kLong, {1}});
  }
  SafetensorsWriter file(path, std::move(planned));
  for (const StateSource& source : sources) {
    const StateShard shard = source.make();
    for (const auto& [what, dtype] : source.dtypes) file.write(shard.tensors.at(what));
    file.write(at::full({1}, shard.num_steps, at::kLong));
  }
  file.commit();
}

StateSource part_of(const StateSource& source, int64_t begin, int64_t end) {
  StateSource part = source;
  part.begin = begin;
  part.end = end;
  part.make = [make = source.make, begin, end] {
    StateShard shard = make();
    for (auto& [what, values] : shard.tensors) {
      values = values.narrow(0, begin - shard.begin, end - begin);
    }
    shard.begin = begin;
    shard.end = end;
    return shard;
  };
  return part;
}

StateReader::StateReader(const std::string& folder, std::map<std::string, StoredWeights> stored)
    : folder_(folder), stored_(std::move(stored)) {
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(folder) / kStateFolder, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = fmt::format("{}/{}", kStateFolder, entry.path().filename().string());
    const auto file = std::make_shared<const SafetensorsFile>(model_file(folder, name));
    for (const SafetensorsEntry& tensor : file->entries()) {
      std::istringstream words(tensor.name);
      std::string what, parameter;
      Run run{0, 0, {file, &tensor}};
      if (!(words >> what >> parameter >> run.begin >> run.end) || run.begin < 0 ||
          run.end < run.begin) {
        throw UserError(
            fmt::format("{}: {} is not the name of a training state.", file->path(), tensor.name));
      }
      const bool counts = what == kSteps;
      const int64_t wanted = counts ? 1 : run.end - run.begin;
      if (run.values.numel() != wanted || (counts && tensor.dtype != at::kLong)) {
        throw UserError(fmt::format("{}: {} should hold {} numbers{}, and holds {} ({}).",
                                    file->path(), tensor.name, wanted, counts ? " (I64)" : "",
                                    run.values.numel(), safetensors_name(tensor.dtype)));
      }
      runs_[what + " " + parameter].push_back(std::move(run));
    }
  }
  for (auto& [name, runs] : runs_) {
    std::ranges::sort(runs, {}, &Run::begin);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file =
        std::make_shared<const SafetensorsFile>(model_file(folder, entry.path().filename()));
    for (const SafetensorsEntry& tensor : file->entries()) {
      const bool of_peft = tensor.name.starts_with(kAdapterPrefix);
      weights_[tensor.name.substr(of_peft ? kAdapterPrefix.size() : 0)] = {file, &tensor};
    }
  }
}

int64_t StateReader::Stored::numel() const {
  return (entry->end - entry->begin) / static_cast<int64_t>(c10::elementSize(entry->dtype));
}

void StateReader::copy_run(const std::string& what, const std::string& parameter, int64_t begin,
                           int64_t end, at::Tensor to) const {
  const auto found = runs_.find(what + " " + parameter);
  int64_t at = begin;
  if (found != runs_.end()) {
    for (const Run& run : found->second) {
      if (run.end <= at || run.begin > at) continue;
      const int64_t until = std::min(run.end, end);
      run.values.file->read_run(*run.values.entry, at - run.begin, until - run.begin,
                                to.narrow(0, at - begin, until - at));
      at = until;
      if (at == end) return;
    }
  }
  throw UserError(
      fmt::format("{} holds no {} for element {} of {}: it belongs to another model or to another "
                  "configuration.",
                  folder_, what, at, parameter));
}

void StateReader::read(StateShard& shard) const {
  for (auto& [what, values] : shard.tensors) {
    if (what == kMaster && !has_master(shard.parameter)) {
      const auto [weights, place] = weights_of(shard.parameter, shard.end);
      copy_weights(*weights, place, shard.begin, values);
    } else {
      copy_run(what, shard.parameter, shard.begin, shard.end, values);
    }
  }
  const auto steps = runs_.find(std::string(kSteps) + " " + shard.parameter);
  if (steps == runs_.end()) {
    throw UserError(
        fmt::format("{} holds no state of {}: it belongs to another model or to another "
                    "configuration.",
                    folder_, shard.parameter));
  }
  const Stored& stored = steps->second.front().values;
  shard.num_steps = stored.file->read(*stored.entry).item<int64_t>();
  if (shard.num_steps < 0 || shard.num_steps > kMostCounted) {
    throw UserError(fmt::format("{}: {} is {}, which is not a valid number of updates.",
                                stored.file->path(), stored.entry->name, shard.num_steps));
  }
}

bool StateReader::has_master(const std::string& parameter) const {
  return runs_.contains(std::string(kMaster) + " " + parameter);
}

std::pair<const StateReader::Stored*, StoredWeights> StateReader::weights_of(
    const std::string& parameter, int64_t end) const {
  const auto known = stored_.find(parameter);
  StoredWeights place = known == stored_.end() ? StoredWeights{parameter} : known->second;
  const auto found = weights_.find(place.tensor);
  if (found != weights_.end() &&
      found->second.numel() >= place.begin + (place.strides.empty() ? end : span_of(place))) {
    return {&found->second, std::move(place)};
  }
  throw UserError(
      fmt::format("{} holds no weights of {} with {} elements: it belongs to another "
                  "model or to another configuration.",
                  folder_, parameter, end));
}

void StateReader::copy_weights(const Stored& weights, const StoredWeights& place, int64_t begin,
                               at::Tensor to) {
  if (place.strides.empty()) {
    const int64_t first = place.begin + begin;
    weights.file->read_run(*weights.entry, first, first + to.numel(), to);
    return;
  }
  const int64_t span = span_of(place);
  at::Tensor whole = at::empty({span}, to.options());
  weights.file->read_run(*weights.entry, place.begin, place.begin + span, whole);
  to.copy_(whole.as_strided(place.shape, place.strides).reshape({-1}).narrow(0, begin, to.numel()));
}

at::Tensor StateReader::read_values(const std::string& parameter, int64_t begin,
                                    int64_t end) const {
  if (has_master(parameter)) {
    at::Tensor values = at::empty({end - begin}, at::kFloat);
    copy_run(kMaster, parameter, begin, end, values);
    return values;
  }
  const auto [weights, place] = weights_of(parameter, end);
  at::Tensor values = at::empty({end - begin}, weights->entry->dtype);
  copy_weights(*weights, place, begin, values);
  return values;
}

void load_optimizer(const StateReader& reader, Optimizer& optimizer) {
  const std::vector<StateSource> states = optimizer.state();
  for (size_t i = 0; i < states.size(); ++i) {
    StateShard shard{states[i].parameter, states[i].begin, states[i].end, 0, {}};
    const int64_t size = shard.end - shard.begin;
    for (const auto& [what, dtype] : states[i].dtypes) {
      shard.tensors[what] = at::empty({size}, dtype);
    }
    shard.tensors[kMaster] = at::empty({size}, states[i].dtypes.begin()->second);
    reader.read(shard);
    optimizer.load_state(i, shard);
  }
}

}  // namespace longspan
