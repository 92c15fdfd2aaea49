#include "longspan/train/reference_cache.h"

#include <ATen/ops/full.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/train/reference_key.h"

namespace longspan {
namespace {

Example pair_of(int32_t first) {
  const Sample chosen{{first, 2, 3}, {-100, 2, 3}}, rejected{{first, 4}, {-100, 4}};
  Example pair;
  pair.documents = {chosen, rejected};
  return pair;
}

std::string folder_with(const testing::TemporaryFolder& place, const std::string& name,
                        const std::string& file, const std::string& content) {
  const std::string folder = place / name;
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/" + file) << content;
  return folder;
}

ReferenceSettings settings_of(const Config& config) {
  return {config.model, config.method, config.preferences, config.data, config.optimization};
}

}  // namespace

TEST_CASE("reference cache: the key knows all that decides the numbers, and nothing else") {
  const testing::TemporaryFolder place;
  Config config;
  config.method.stage = "dpo";
  config.model.model_name_or_path = folder_with(place, "model", "config.json", "{}");
  const ExamplesInMemory both({pair_of(1), pair_of(5)}), turned({pair_of(5), pair_of(1)}),
      one({pair_of(1)});
  std::set<std::string> keys{reference_key(settings_of(config), both)};
  const auto differs = [&](const Config& changed, const ExampleSet& examples) {
    return keys.insert(reference_key(settings_of(changed), examples)).second;
  };
  CHECK(!differs(config, both));
  CHECK(differs(config, turned));
  CHECK(differs(config, one));
  const auto weighted_by = [](float weight) {
    Example pair = pair_of(1);
    for (Sample& document : pair.documents) {
      document.columns["weight"] = {at::full({std::ssize(document.input_ids)}, weight)};
    }
    return ExamplesInMemory({pair});
  };
  CHECK(differs(config, weighted_by(1)));
  CHECK(differs(config, weighted_by(2)));
  const auto changed_by = [&](auto&& change) {
    Config changed = config;
    change(changed);
    return differs(changed, both);
  };
  // With LoRA the base model is entirely in bf16; otherwise its norms are in fp32.
  CHECK(changed_by([](Config& c) { c.method.finetuning_type = "lora"; }));
  CHECK(changed_by([](Config& c) { c.optimization.bf16 = true; }));
  CHECK(
      changed_by([](Config& c) { c.optimization.bf16 = true, c.method.finetuning_type = "lora"; }));
  CHECK(changed_by([](Config& c) { c.model.pure_bf16 = true; }));
  CHECK(changed_by([](Config& c) { c.method.stage = "kto"; }));
  CHECK(changed_by([](Config& c) { c.model.rope_scaling = "yarn"; }));
  CHECK(changed_by([](Config& c) { c.model.rope_scaling = "yarn", c.data.cutoff_len = 4096; }));
  const std::string other = folder_with(place, "other", "config.json", "{ }");
  CHECK(changed_by([&](Config& c) { c.preferences.ref_model = other; }));
  const std::string adapter = folder_with(place, "adapter", "adapter_config.json", "{}");
  CHECK(changed_by([&](Config& c) {
    c.preferences.ref_model = other, c.preferences.ref_model_adapters = adapter;
  }));
  CHECK(changed_by([&](Config& c) { c.model.adapter_name_or_path = adapter + "," + adapter; }));
  // Two flipped signs: a difference only in the highest bits.
  const std::string weights = config.model.model_name_or_path + "/model.safetensors";
  const auto with_weights = [&](std::vector<float> numbers) {
    std::ofstream(weights, std::ios::binary)
        .write(reinterpret_cast<const char*>(numbers.data()), 16);
    return differs(config, both);
  };
  CHECK(with_weights({1, 2, 3, 4}));
  CHECK(with_weights({1, -2, 3, -4}));
  for (const char* name : {"quantize_config.json", "quant_config.json"}) {
    std::ofstream(config.model.model_name_or_path + "/" + name) << "{}";
    CHECK(differs(config, both));
  }
  // Only the rows count, not the settings that cut them; settings of the computation only change
  // rounding.
  CHECK(!changed_by([](Config& c) { c.data.cutoff_len = 4096; }));
  CHECK(!changed_by([](Config& c) { c.model.disable_gradient_checkpointing = true; }));
}

TEST_CASE("reference cache: what the file holds goes out from rank 0 alone") {
  const testing::TemporaryFolder place;
  Config config;
  config.method.stage = "dpo";
  config.output.output_dir = place.path;
  config.model.model_name_or_path = folder_with(place, "model", "config.json", "{}");
  std::vector<Example> examples;
  for (int32_t i = 0; i < 2000; ++i) examples.push_back(pair_of(i));
  const ExamplesInMemory all(std::move(examples));
  const std::string key = reference_key(settings_of(config), all);
  const std::string path = fmt::format("{}/reference_logps_{}.jsonl", place.path, key);
  {
    std::ofstream file(path);
    for (int64_t i = 0; i < all.size(); ++i) {
      file << reference_line(key, static_cast<size_t>(i), {-0.25 * double(i), -2.5});
    }
  }
  const auto num_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  constexpr int kRanks = 3;
  std::vector<int64_t> sent(kRanks);
  std::vector<std::optional<ReferenceTable>> tables(kRanks);
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    const auto attention = make_local(cpu_block_kernel());
    const ReferenceJob job{
        settings_of(config), config.output.output_dir, mesh, *attention, at::kCPU, all,
        [] { return false; }};
    Events silent(/*rank=*/0, /*sink=*/nullptr);
    const int rank = mesh.world.rank();
    tables[rank] = precompute_reference(job, [] { return std::unique_ptr<Reference>(); }, silent);
    sent[rank] = mesh.world.traffic().all_gather;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    REQUIRE(tables[rank]);
    CHECK(std::ssize(*tables[rank]) == all.size());
    CHECK(tables[rank]->at(8) == std::vector<double>{-2.0, -2.5});
    CHECK(sent[rank] < num_bytes / 10);  // what the ranks agree on, not the file
  }
}

TEST_CASE("reference cache: lines that are not as written are computed again") {
  const testing::TemporaryFolder place;
  Config config;
  config.method.stage = "dpo";
  config.output.output_dir = place.path;
  config.model.model_name_or_path = folder_with(place, "model", "config.json", "{}");
  std::vector<Example> examples;
  for (int32_t i = 0; i < 7; ++i) examples.push_back(pair_of(i));
  const ExamplesInMemory all(std::move(examples));
  const std::string key = reference_key(settings_of(config), all);
  const std::string path = fmt::format("{}/reference_logps_{}.jsonl", place.path, key);
  std::string changed = reference_line(key, 1, {-1.5, -2.5});
  changed.replace(changed.find("-1.5"), 4, "-7.5");
  const std::string old = "{\"example\":3,\"logps\":[-1.0,-2.0]}\n";
  {
    std::ofstream file(path);
    file << reference_line(key, 0, {-0.5, -2.5}) << changed << old  // by an older version
         << "{\"example\":2,\"logps\":[-1.0]}\n"       // no checksum, one of two documents
         << "{\"example\":2,\"logps\":[-1.0,true]}\n"  // no checksum, not a number
         << "{\"example\":2,\"logps\":[-1.0,-2.0],\"xxh64\":null}\n"
         << reference_line("another key", 3, {-1.0, -2.0})  // another model or other rows
         << "{\"example\":4,\"logps\":[null,1e999]}\n"
         << reference_line(key, 5, {-1.0})                      // one of two documents
         << reference_line(key, 700, {-1.0, -2.0})              // no such example
         << reference_line(key, 6, {-1.0, -2.0}).substr(0, 9);  // left by a killed run
  }
  testing::run_ranks(1, [&](const Mesh& mesh) {
    const auto attention = make_local(cpu_block_kernel());
    const ReferenceJob job{
        settings_of(config), config.output.output_dir, mesh, *attention, at::kCPU, all,
        [] { return false; }};
    Events silent(/*rank=*/0, /*sink=*/nullptr);
    const auto no_model = []() -> std::unique_ptr<Reference> { throw UserError("asked for"); };
    // Missing examples require the model.
    CHECK_THROWS_WITH_AS(precompute_reference(job, no_model, silent), "asked for", UserError);
  });
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  CHECK(text == reference_line(key, 0, {-0.5, -2.5}) + old);
}

}  // namespace longspan
