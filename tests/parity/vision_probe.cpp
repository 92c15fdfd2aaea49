// Runs models of texts and pictures for the Python tests:
// vision_probe <model folder> <job.json> <patches.safetensors> <result.safetensors>.
// vision_probe count <config.json>... prints the number of parameters of each.
//
// The job: tokens, labels (already shifted, -100 if none), feature (index of each token's feature,
// -1 if none), positions (three lists, or none: counted), grids (of the pictures: t, h, w),
// merge_size, two_way (tokens of a picture see each other), checkpointing, compute_dtype, and
// optionally save_to (a folder for the model), adapter (a folder; its matrices alone train) and
// save_adapter_to. `patches`: of all pictures, fp32. The result: features, logits, the loss, and
// gradient.NAME of each parameter that trains.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/models/composite.h"
#include "longspan/models/decoder.h"
#include "longspan/models/dtype_words.h"
#include "longspan/models/parameter_count.h"
#include "longspan/objectives/sft.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/session/shared_tower.h"

namespace {

using namespace longspan;

Batch read_batch(const nlohmann::json& job) {
  Sample sample{.input_ids = job.at("tokens").get<std::vector<int32_t>>(), .labels = {}};
  sample.labels.assign(sample.input_ids.size(), kIgnoreLabel);
  sample.columns[kFeatureColumn] = {at::tensor(job.at("feature").get<std::vector<int64_t>>()), -1};
  std::vector<at::Tensor> axes;
  for (const auto& axis : job.at("positions")) {
    axes.push_back(at::tensor(axis.get<std::vector<int64_t>>()));
  }
  if (!axes.empty()) sample.positions_AT = at::stack(axes);
  const auto merge = job.at("merge_size").get<int64_t>();
  for (size_t i = 0; i < job.at("grids").size(); ++i) {
    const auto grid = job.at("grids")[i].get<std::vector<int64_t>>();
    Picture& picture = sample.pictures.emplace_back();
    picture.files = {std::to_string(i)};
    picture.grid = {grid[0], grid[1], grid[2]};
    picture.num_features = picture.grid.num_patches() / (merge * merge);
    picture.is_two_way = job.value("two_way", false);
  }
  Batch batch = collate({&sample});
  batch.labels_T = at::tensor(job.at("labels").get<std::vector<int64_t>>());
  auto pictures = std::make_shared<RowPictures>(*batch.pictures);
  const at::Tensor features = batch.columns.at(kFeatureColumn).values;
  std::vector<int64_t>& wanted = pictures->wanted.emplace_back();
  for (int64_t i = 0; i < features.numel(); ++i) {
    if (const auto feature = features[i].item<int64_t>(); feature >= 0) wanted.push_back(feature);
  }
  batch.pictures = pictures;
  return batch;
}

void run(const std::string& folder, const nlohmann::json& job, const std::string& patches_path,
         const std::string& result_path) {
  const ModelConfig config = with_pictures(load_folder_config(folder));
  auto parameters =
      load_parameters(folder, config, dtype_named(job.value("parameter_dtype", "float32")).value());
  DecoderOptions options;
  std::optional<Adapter> adapter;
  if (job.contains("adapter")) {
    adapter = load_adapter(job["adapter"], config);
    options.lora_scale = adapter->shape.scale();
    parameters.insert(parameters.end(), adapter->parameters.begin(), adapter->parameters.end());
  }
  for (auto& [name, tensor] : adapter ? adapter->parameters : parameters) {
    tensor.requires_grad_(true);
  }
  const auto attention = make_local(cpu_block_kernel());
  options.gradient_checkpointing = job.value("checkpointing", false);
  options.compute_dtype = dtype_named(job.value("compute_dtype", "float32")).value();
  const at::Tensor patches_PX = read_safetensors(patches_path).front().tensor;
  const Batch batch = read_batch(job);
  const FramePatches patches = [&](const Picture& picture, int64_t t) {
    int64_t begin = 0;
    for (const Picture& other : batch.pictures->pictures) {
      if (other == picture) break;
      begin += other.grid.num_patches();
    }
    const int64_t size = picture.grid.h * picture.grid.w;
    return patches_PX.narrow(0, begin + t * size, size);
  };
  const auto pictures = make_picture_features(config.spec, parameters, options, patches, *attention,
                                              cpu_block_kernel());
  options.pictures = pictures.get();
  Decoder model(config.spec, parameters, *attention, options);
  std::vector<NamedTensor> results;
  {
    const at::NoGradGuard no_grad;
    if (const at::Tensor features_FE = pictures->of(batch); features_FE.defined()) {
      results.push_back({"features", features_FE});
    }
    results.push_back({"logits", model.logits(batch)});
  }
  const at::Tensor loss = sft_loss(model, batch, count_labels(batch));
  results.push_back({"loss", loss.detach()});
  torch::autograd::backward({loss}, {});
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) results.push_back({"gradient." + name, parameter.grad()});
  }
  write_safetensors(result_path, results);
  if (job.contains("save_to")) {
    save_model_folder(job["save_to"], config, parameters, at::kFloat, folder, int64_t{5} << 30);
  }
  if (job.contains("save_adapter_to")) {
    save_adapter(job["save_adapter_to"], config, *adapter, at::kFloat, folder);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "count") {
    for (int i = 2; i < argc; ++i) {
      std::cout << parameter_count(with_pictures(load_model_config(argv[i])).spec) << "\n";
    }
    return 0;
  }
  if (argc != 5) {
    std::cerr << "usage: vision_probe <model folder> <job.json> <patches.safetensors> "
                 "<result.safetensors>\n";
    return 2;
  }
  try {
    std::ifstream file(argv[2]);
    run(argv[1], nlohmann::json::parse(file), argv[3], argv[4]);
  } catch (const UserError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
