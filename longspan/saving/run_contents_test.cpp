#include "longspan/saving/run_contents.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/input/input_file.h"
#include "longspan/saving/read_contents.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

/// Models, an adapter and data sets, of a few bytes each.
struct Place {
  testing::TemporaryFolder folder;
  Config config;

  Place() {
    for (const char* model : {"base", "reference"}) {
      for (const char* name :
           {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}) {
        folder.write(std::string(model) + "/" + name, "\"" + std::string(model) + name + "\"");
      }
    }
    folder.write("sharded/config.json", "{}");
    folder.write("sharded/model.safetensors.index.json",
                 R"({"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}})");
    folder.write("adapter/adapter_config.json", "{}");
    folder.write("adapter/adapter_model.safetensors", "a");
    folder.write("data/rows.json", "[]");
    folder.write("data/held_out.json", "[]");
    folder.write("data/dataset_info.json",
                 R"({"rows": {"file_name": "rows.json"}, "held_out": {"file_name":
                 "held_out.json"}})");
    config.model.model_name_or_path = folder / "base";
    config.data.dataset_dir = folder / "data";
    config.data.dataset = "rows";
    config.data.eval_dataset = "held_out";
  }
};

std::string listed(const RunContents& files) {
  std::string text;
  for (const RunFile& file : files) {
    text += std::string(name_of(file.role)) + ": " + file.name + (file.decides ? "!" : "") + "\n";
  }
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

ContentSettings content_settings(const Config& config) {
  return {config.model, config.method, config.preferences, config.data};
}

/// Returns rank 0's result after three ranks have read the files.
RunContents read_by_three(const Config& config, const RunContents& known = {}) {
  RunContents read;
  testing::run_ranks(3, [&](const Mesh& mesh) {
    Notices notices(Rendezvous{});
    Events events(/*rank=*/0, /*sink=*/nullptr);
    RunContents mine = read_contents(content_settings(config), mesh.world, notices, known, events);
    if (mesh.world.rank() == 0) read = std::move(mine);
  });
  return read;
}

}  // namespace

TEST_CASE("run contents: which files there are, and which of them decide") {
  Place place;
  CHECK(listed(files_of_run(content_settings(place.config))) ==
        "model configuration: config.json\nmodel weights: model.safetensors\n"
        "tokenizer: tokenizer.json!\ntokenizer: chat_template.jinja!\n"
        "training data: rows.json!\nevaluation data: held_out.json\n");
  const auto decides = [&](FileRole role) {
    const RunContents files = files_of_run(content_settings(place.config));
    const auto file = std::ranges::find(files, role, &RunFile::role);
    REQUIRE(file != files.end());
    return file->decides;
  };
  place.config.method.finetuning_type = "freeze";
  CHECK(decides(FileRole::kModelWeights));
  place.config.method.finetuning_type = "lora";
  CHECK(decides(FileRole::kModelWeights));
  place.config.model.adapter_name_or_path =
      (place.folder / "adapter") + "," + (place.folder / "adapter");
  CHECK(decides(FileRole::kMergedAdapter));
  CHECK_FALSE(decides(FileRole::kAdapter));  // the checkpoint's adapter is used
}

TEST_CASE("run contents: a reference model decides, and so does a base that is one") {
  Place place;
  place.folder.write("data/dataset_info.json",
                     R"({"rows": {"file_name": "rows.json", "ranking": true, "columns": {"prompt":
                     "p", "chosen": "c", "rejected": "r"}}})");
  place.config.data.eval_dataset.clear();
  place.config.method.stage = "dpo";
  const auto weights_decide = [&] {
    const RunContents files = files_of_run(content_settings(place.config));
    return std::ranges::find(files, FileRole::kModelWeights, &RunFile::role)->decides;
  };
  CHECK(weights_decide());
  place.config.preferences.pref_loss = "simpo";  // has no reference
  CHECK_FALSE(weights_decide());
  place.config.preferences.pref_loss = "sigmoid";
  place.config.preferences.ref_model = place.folder / "reference";
  CHECK_FALSE(weights_decide());
  CHECK(has(listed(files_of_run(content_settings(place.config))),
            "reference model: config.json\nreference model: model.safetensors!\n"));
}

TEST_CASE("run contents: keys of quantization beside config.json") {
  Place place;
  place.config.data.eval_dataset.clear();
  place.folder.write("base/quantize_config.json", "{}");
  place.folder.write("reference/quant_config.json", "{}");
  place.config.preferences.ref_model = place.folder / "reference";
  place.config.preferences.use_asft_loss = true;
  const std::string files = listed(files_of_run(content_settings(place.config)));
  CHECK(has(files, "model configuration: quantize_config.json\n"));
  CHECK(has(files, "reference model: quant_config.json!\n"));
}

TEST_CASE("run contents: the files that an index names") {
  Place place;
  place.config.model.model_name_or_path = place.folder / "sharded";
  CHECK(has(listed(files_of_run(content_settings(place.config))),
            "model weights: one.safetensors\nmodel weights: two.safetensors\n"));
  const auto write_index = [&](const std::string& note, const std::string& shard) {
    place.folder.write(
        "sharded/model.safetensors.index.json",
        R"({"metadata": {"note": ")" + note + R"("}, "weight_map": {"a": ")" + shard + R"("}})");
  };
  // An index grows with the model and may exceed the limit for settings.
  write_index(std::string(kMaxSettingsBytes, 'x'), "one.safetensors");
  CHECK(has(listed(files_of_run(content_settings(place.config))),
            "model weights: one.safetensors\n"));
  // Only files that are loaded are listed.
  write_index("", "../base/model.safetensors");
  CHECK_THROWS_WITH_AS(files_of_run(content_settings(place.config)),
                       doctest::Contains("shard ../base/model.safetensors of a is outside"),
                       UserError);
}

TEST_CASE("run contents: a file of a role that a later version knows is passed over") {
  const RunFile file{.role = FileRole::kReference,
                     .name = "a",
                     .path = "/a",
                     .decides = true,
                     .stamp = {.size = 1, .mtime_ns = 1, .ctime_ns = 1, .inode = 1},
                     .digest = 7};
  nlohmann::ordered_json json = json_of_contents({file});
  CHECK(json.at(0).at("role") == "reference model");
  CHECK(contents_from(json).at(0).role == FileRole::kReference);
  json.at(0)["role"] = "a friend";
  CHECK(contents_from(json).empty());
}

TEST_CASE("run contents: several data files may be renamed, not swapped for others") {
  const auto data = [](const std::string& name, uint64_t digest) {
    return RunFile{.role = FileRole::kTrainingData,
                   .name = name,
                   .path = "/" + name,
                   .decides = true,
                   .stamp = {.size = 1, .mtime_ns = 1, .ctime_ns = 1, .inode = 1},
                   .digest = digest};
  };
  const RunContents then = {data("a", 1), data("b", 2)};
  CHECK(changed_files(then, {data("c", 1), data("d", 2)}).empty());
  const auto swapped = changed_files(then, {data("a", 1), data("b", 3)});
  REQUIRE(swapped.size() == 1);
  CHECK(swapped[0].path == "/b");
  const auto longer = changed_files(then, {data("a", 1), data("b", 2), data("c", 3)});
  REQUIRE(longer.size() == 1);
  CHECK(longer[0].how == "is new");
  const auto shorter = changed_files(then, {data("b", 2)});
  REQUIRE(shorter.size() == 1);
  CHECK(shorter[0].path == "/a");
  CHECK(shorter[0].how == "is gone");
}

TEST_CASE("run contents: ranks share the files out, and know again what has not changed") {
  const Place place;
  const RunContents first = read_by_three(place.config);
  REQUIRE(listed(first) == listed(files_of_run(content_settings(place.config))));
  for (const RunFile& file : first) {
    CAPTURE(file.path);
    CHECK(file.digest == digest_of_block(file.path, 0));
    CHECK(file.stamp == stamp_of_file(file.path));
  }
  // A known digest is trusted while the stamp is the same.
  RunContents known = first;
  for (RunFile& file : known) file.digest = 1;
  CHECK(read_by_three(place.config, known)[1].digest == 1);
  known[1].stamp.ctime_ns -= 1;
  const RunContents again = read_by_three(place.config, known);
  CHECK(again[1].digest == first[1].digest);
  CHECK(again[0].digest == 1);
}

TEST_CASE("run contents: a path leads where the system says") {
  Place place;
  place.folder.write("elsewhere/deep/file", "");
  place.folder.write("elsewhere/data/rows.json", "[1]");
  place.folder.write("elsewhere/data/dataset_info.json", R"({"rows": {"file_name": "rows.json"}})");
  std::filesystem::create_directory_symlink(place.folder / "elsewhere/deep", place.folder / "link");
  place.config.data.dataset_dir = place.folder / "link/../data";
  place.config.data.eval_dataset.clear();
  const RunContents read = read_by_three(place.config);
  const auto rows = std::ranges::find(read, FileRole::kTrainingData, &RunFile::role);
  REQUIRE(rows != read.end());
  CHECK(rows->digest == digest_of_block(place.folder / "elsewhere/data/rows.json", 0));
}

TEST_CASE("run contents: what cannot be read has no digest, and does not end the run") {
  const Place place;
  std::filesystem::remove(place.folder / "base/config.json");
  const RunContents read = read_by_three(place.config);
  REQUIRE(read.size() == 6);
  CHECK(read[0].name == "config.json");
  CHECK_FALSE(read[0].digest);
  for (size_t i = 1; i < read.size(); ++i) {
    CHECK(read[i].digest == digest_of_block(read[i].path, 0));
  }
}

}  // namespace longspan
