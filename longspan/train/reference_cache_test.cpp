#include "longspan/train/reference_cache.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "longspan/config/user_error.h"
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

}  // namespace

TEST_CASE("reference cache: the key knows all that decides the numbers, and nothing else") {
  const testing::TemporaryFolder place;
  Config config;
  config.stage = "dpo";
  config.model_name_or_path = folder_with(place, "model", "config.json", "{}");
  const Example one = pair_of(1), two = pair_of(5);
  std::set<std::string> keys{reference_key(config, {&one, &two})};
  const auto differs = [&](const Config& changed, const std::vector<const Example*>& examples) {
    return keys.insert(reference_key(changed, examples)).second;
  };
  CHECK(!differs(config, {&one, &two}));
  CHECK(differs(config, {&two, &one}));
  CHECK(differs(config, {&one}));
  const auto changed_by = [&](auto&& change) {
    Config changed = config;
    change(changed);
    return differs(changed, {&one, &two});
  };
  // The base model is in bf16 as a whole under LoRA, and its norms in fp32 otherwise.
  CHECK(changed_by([](Config& c) { c.finetuning_type = "lora"; }));
  CHECK(changed_by([](Config& c) { c.bf16 = true; }));
  CHECK(changed_by([](Config& c) { c.bf16 = true, c.finetuning_type = "lora"; }));
  CHECK(changed_by([](Config& c) { c.pure_bf16 = true; }));
  CHECK(changed_by([](Config& c) { c.stage = "kto"; }));
  CHECK(changed_by([](Config& c) { c.rope_scaling = "yarn"; }));
  CHECK(changed_by([](Config& c) { c.rope_scaling = "yarn", c.cutoff_len = 4096; }));
  const std::string other = folder_with(place, "other", "config.json", "{ }");
  CHECK(changed_by([&](Config& c) { c.ref_model = other; }));
  const std::string adapter = folder_with(place, "adapter", "adapter_config.json", "{}");
  CHECK(changed_by([&](Config& c) { c.ref_model = other, c.ref_model_adapters = adapter; }));
  CHECK(changed_by([&](Config& c) { c.adapter_name_or_path = adapter + "," + adapter; }));
  // Two signs turned: a difference in the highest bits alone.
  const std::string weights = config.model_name_or_path + "/model.safetensors";
  const auto with_weights = [&](std::vector<float> numbers) {
    std::ofstream(weights, std::ios::binary)
        .write(reinterpret_cast<const char*>(numbers.data()), 16);
    return differs(config, {&one, &two});
  };
  CHECK(with_weights({1, 2, 3, 4}));
  CHECK(with_weights({1, -2, 3, -4}));
  // Rows are what counts, not what cuts them; how they are computed rounds, no more.
  CHECK(!changed_by([](Config& c) { c.cutoff_len = 4096; }));
  CHECK(!changed_by([](Config& c) { c.disable_gradient_checkpointing = true; }));
}

TEST_CASE("reference cache: what the file holds goes out from rank 0 alone") {
  const testing::TemporaryFolder place;
  Config config;
  config.stage = "dpo";
  config.output_dir = place.path;
  config.model_name_or_path = folder_with(place, "model", "config.json", "{}");
  std::vector<Example> examples;
  for (int32_t i = 0; i < 2000; ++i) examples.push_back(pair_of(i));
  std::vector<const Example*> all;
  for (const Example& example : examples) all.push_back(&example);
  const std::string path =
      fmt::format("{}/reference_logps_{}.jsonl", place.path, reference_key(config, all));
  {
    std::ofstream file(path);
    for (size_t i = 0; i < all.size(); ++i) {
      file << fmt::format("{{\"example\":{},\"logps\":[{},-2.5]}}\n", i, -0.25 * double(i));
    }
  }
  const auto num_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  constexpr int kRanks = 3;
  std::vector<int64_t> sent(kRanks);
  std::vector<std::optional<ReferenceTable>> tables(kRanks);
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    const auto attention = make_local(cpu_block_kernel());
    const ReferenceJob job{config, mesh, *attention, at::kCPU, all, [] { return false; }};
    Console silent(/*silent=*/true);
    const int rank = mesh.world.rank();
    tables[rank] = precompute_reference(job, [] { return std::unique_ptr<Reference>(); }, silent);
    sent[rank] = mesh.world.traffic().all_gather;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    REQUIRE(tables[rank]);
    CHECK(tables[rank]->size() == all.size());
    CHECK(tables[rank]->at(all[8]) == std::vector<double>{-2.0, -2.5});
    CHECK(sent[rank] < num_bytes / 10);  // what the ranks agree on, not the file
  }
}

TEST_CASE("reference cache: a line of other numbers is an error with its place") {
  const testing::TemporaryFolder place;
  Config config;
  config.stage = "dpo";
  config.output_dir = place.path;
  config.model_name_or_path = folder_with(place, "model", "config.json", "{}");
  const Example one = pair_of(1);
  const std::vector<const Example*> all{&one};
  const std::string path =
      fmt::format("{}/reference_logps_{}.jsonl", place.path, reference_key(config, all));
  const auto complaint = [&](const std::string& lines) {
    std::ofstream(path) << lines;
    std::string said;
    testing::run_ranks(1, [&](const Mesh& mesh) {
      const auto attention = make_local(cpu_block_kernel());
      const ReferenceJob job{config, mesh, *attention, at::kCPU, all, [] { return false; }};
      Console silent(/*silent=*/true);
      try {
        precompute_reference(job, [] { return std::unique_ptr<Reference>(); }, silent);
      } catch (const UserError& error) {
        said = error.what();
      }
    });
    return said;
  };
  const std::string good = "{\"example\":0,\"logps\":[-1.0,-2.5]}\n";
  CHECK(complaint(good).empty());
  CHECK(complaint(good + "{\"example\":0,\"lo").empty());  // what a killed run leaves
  CHECK(complaint(good + "{\"example\":0,\"logps\":[null,-2.5]}\n") ==
        path + ", line 2: logps must be a list of numbers.");
  CHECK(complaint("{\"example\":null,\"logps\":[-1.0,-2.5]}\n") ==
        path + ", line 1: example is missing.");
  CHECK(complaint("{\"example\":-1,\"logps\":[-1.0,-2.5]}\n").starts_with(path + ", line 1: "));
  CHECK(complaint("{\"example\":0,\"logps\":[-1.0]}\n").starts_with(path + ", line 1: "));
  CHECK(complaint("[3]\n") == path + ", line 1 is not a JSON object.");
}

}  // namespace longspan
