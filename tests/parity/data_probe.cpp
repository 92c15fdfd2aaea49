// Prints the examples of a configuration for comparisons in Python tests: a JSON line for each
// example of the training rows (without do_train: of the rows to answer): {"documents":
// [{"input_ids", "labels"}, ...], "positions", "desirable", "description"} (documents with pictures
// also have "features", "positions" of three axes and "pictures"), and the first document's
// input_ids and labels again at the top level. The report of packing goes to stderr. Usage:
// data_probe config.json [key=value ...]
//
// Without arguments: reads the name of a configuration file from each line of stdin, and prints
// those lines followed by an empty one, or {"error": ...} and an empty one. A tokenizer whose files
// have not changed is loaded once. For a line "rows FILE", the lines are {"row": ...} for each row
// of a file, and {"note": ...}.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/data/dataset.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/example_encoder.h"
#include "longspan/data/picture_encoding.h"
#include "longspan/data/row_file.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/data/streamed_examples.h"
#include "longspan/registers/stage.h"
#include "longspan/text/tokenizer.h"

namespace {

using namespace longspan;
using nlohmann::json;

template <typename Json>
void print_line(const Json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', true, Json::error_handler_t::replace));
}

/// Many folders of tests hold only a tokenizer.
std::optional<PictureEncoding> pictures_of(const Config& config, const Tokenizer& tokenizer) {
  const std::string& folder = config.model.model_name_or_path;
  if (!std::filesystem::exists(std::filesystem::path(folder) / "config.json")) return std::nullopt;
  return picture_encoding_of(folder, tokenizer, config.data);
}

json as_json(const Sample& document) {
  json printed = {{"input_ids", document.input_ids}, {"labels", document.labels}};
  const auto numbers = [](const at::Tensor& x) {
    const int64_t* const first = x.const_data_ptr<int64_t>();
    return std::vector<int64_t>(first, first + x.numel());
  };
  if (const auto column = document.columns.find(kFeatureColumn); column != document.columns.end()) {
    printed["features"] = numbers(column->second.values);
  }
  if (document.positions_AT.defined()) {
    printed["positions"] = numbers(document.positions_AT.contiguous());
  }
  for (const Picture& picture : document.pictures) {
    printed["pictures"].push_back({{"files", picture.files},
                                   {"is_video", picture.is_video},
                                   {"frames", picture.frames},
                                   {"grid", {picture.grid.t, picture.grid.h, picture.grid.w}},
                                   {"num_features", picture.num_features}});
  }
  return printed;
}

/// Prints the first epoch of a stream.
void print_stream(const Config& config, const Tokenizer& tokenizer) {
  const StreamJob job{.config = config.data,
                      .stage = stage_of(config.method),
                      .tokenizer = tokenizer,
                      .template_time = local_time_now(),
                      .vocab_size = INT64_MAX,
                      .seed = config.optimization.seed,
                      .shuffles = !config.method.disable_shuffling};
  StreamedExamples examples(job, {});
  for (;;) {
    const StreamedExamples::Drawn drawn = examples.next();
    if (drawn.after.epoch > 0) return;
    print_line(json{{"input_ids", drawn.example.documents[0].input_ids}});
  }
}

void print_examples(const Config& config, const Tokenizer& tokenizer) {
  if (config.data.streaming) return print_stream(config, tokenizer);
  const std::optional<PictureEncoding> pictures = pictures_of(config, tokenizer);
  const RunRows rows =
      read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
  const bool trains = config.method.do_train;
  DataSettings settings = config.data;
  settings.asks_rows = !trains;
  const EncodedExamples encoded =
      encode_examples({settings, stage_of(config.method), tokenizer, local_time_now(), INT64_MAX,
                       pictures ? &*pictures : nullptr},
                      trains ? rows.train : rows.eval);
  for (const Example& example : encoded.examples) {
    json line = {{"input_ids", example.documents[0].input_ids},
                 {"labels", example.documents[0].labels},
                 {"desirable", example.desirable},
                 {"description", describe_example(example, config.method.stage, tokenizer)}};
    for (const Sample& document : example.documents) {
      line["documents"].push_back(as_json(document));
    }
    const Batch row = collate_examples({&example});
    const int64_t* positions = row.positions_T.const_data_ptr<int64_t>();
    line["positions"] = std::vector<int64_t>(positions, positions + row.packing.num_tokens());
    print_line(line);
  }
  if (encoded.packing) fmt::print(stderr, "{}\n", encoded.packing->text());
}

/// Returns a text that changes whenever one of the tokenizer's files does.
std::string stamp_of(const std::string& folder) {
  std::string stamp;
  for (const char* name : Tokenizer::kFiles) {
    const std::filesystem::path file = std::filesystem::path(folder) / name;
    if (!std::filesystem::exists(file)) continue;
    stamp += fmt::format("{} {} {};", name, std::filesystem::file_size(file),
                         std::filesystem::last_write_time(file).time_since_epoch().count());
  }
  return stamp;
}

const Tokenizer& tokenizer_of(const std::string& folder, const DataSettings& config) {
  static std::map<std::pair<std::string, std::string>, Tokenizer> loaded;
  const std::pair key(folder,
                      stamp_of(folder) + config.add_tokens + " " + config.add_special_tokens);
  const auto found = loaded.find(key);
  return found != loaded.end() ? found->second
                               : loaded.emplace(key, run_tokenizer(folder, config)).first->second;
}

void print_rows(const std::string& path) {
  for_each_row(path, /*unwraps_data=*/true,
               {[](const nlohmann::ordered_json& row, const std::string&) {
                  print_line(nlohmann::ordered_json{{"row", row}});
                  return true;
                },
                [](const std::string& reason) -> bool { throw UserError(reason); },
                [](const std::string& note) { print_line(json{{"note", note}}); }});
}

void answer_requests() {
  constexpr std::string_view kRows = "rows ";
  std::string file;
  while (std::getline(std::cin, file)) {
    try {
      if (file.starts_with(kRows)) {
        print_rows(file.substr(kRows.size()));
      } else {
        const Config config = load_config(file, {});
        print_examples(config, tokenizer_of(config.model.model_name_or_path, config.data));
      }
    } catch (const UserError& error) {
      print_line(json{{"error", error.what()}});
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    answer_requests();
    return 0;
  }
  try {
    const Config config = load_config(argv[1], {argv + 2, argv + argc});
    print_examples(config, run_tokenizer(config.model.model_name_or_path, config.data));
  } catch (const UserError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
