#include "longspan/data/fetch_command.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "longspan/text/shown.h"

namespace longspan {

namespace {

/// {value}: the key's text. {folder}: the place of the fetched files, in dataset_dir; {last}: the
/// last part of its name.
struct Fetch {
  std::string_view key, value_begins, command, file_name;
};

constexpr Fetch kFetches[] = {
    {"hf_hub_url", "", "hf download {value} --repo-type dataset --local-dir {folder}",
     "{last}/data/train-*.parquet"},
    {"ms_hub_url", "", "modelscope download --dataset {value} --local_dir {folder}",
     "{last}/data/train-*.parquet"},
    {"om_hub_url", "",
     "python -c \"from openmind_hub import snapshot_download as get; get('{value}', "
     "repo_type='dataset', local_dir='{folder}')\"",
     "{last}/data/train-*.parquet"},
    {"script_url", "",
     "python -c \"import datasets; datasets.load_dataset('{folder}', split='train', "
     "trust_remote_code=True).to_parquet('{folder}.parquet')\" (with datasets below 4, which runs "
     "such scripts)",
     "{last}.parquet"},
    {"cloud_file_name", "gs:", "gcloud storage cp {value} {folder}", "{last}"},
    {"cloud_file_name", "gcs:", "gcloud storage cp {value} {folder}", "{last}"},
    {"cloud_file_name", "", "aws s3 cp {value} {folder}", "{last}"}};

/// True if no character of a text has a meaning for a shell. Entries may come from strangers.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text,
                             [](char c) {
                               return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                                      (c >= 'a' && c <= 'z') ||
                                      std::string_view("._-/:@").find(c) != std::string_view::npos;
                             }) &&
         !text.starts_with('-');
}

}  // namespace

std::string fetch_command(const std::string& key, const std::string& value,
                          const std::string& dataset_dir, const std::string& name) {
  if (!is_plain(value)) return "";
  for (const Fetch& fetch : kFetches) {
    if (key != fetch.key || !value.starts_with(fetch.value_begins)) continue;
    const std::string last = std::filesystem::path(value).filename().string();
    fmt::dynamic_format_arg_store<fmt::format_context> args;
    args.push_back(fmt::arg("value", value));
    args.push_back(fmt::arg("folder", (std::filesystem::path(dataset_dir) / last).string()));
    args.push_back(fmt::arg("last", last));
    const nlohmann::json entry = {{"file_name", fmt::vformat(fetch.file_name, args)}};
    return fmt::format(
        "fetch it with\n  {}\nand write this entry, with the place of the files and the keys "
        "formatting, columns and tags of the old one:\n  {}: {}",
        shortened(fmt::vformat(fetch.command, args), 1000), nlohmann::json(name).dump(),
        entry.dump());
  }
  return "";
}

}  // namespace longspan
