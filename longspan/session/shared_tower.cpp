#include "longspan/session/shared_tower.h"

#include <ATen/ATen.h>

#include <utility>

namespace longspan {
namespace {

int64_t patches_in(const RowPictures& pictures, const PictureFrame& frame) {
  const PictureGrid& grid = pictures.pictures[frame.picture].grid;
  return grid.h * grid.w;
}

}  // namespace

SharedTower::SharedTower(std::unique_ptr<VisionTower> tower, FramePatches patches, Group sharers,
                         at::Device device, bool every_row)
    : tower_(std::move(tower)),
      patches_(std::move(patches)),
      sharers_(std::move(sharers)),
      device_(device),
      every_row_(every_row) {}

PictureShares SharedTower::shares_of(const RowPictures& pictures) const {
  return share_pictures(pictures, sharers_.size(), [this](int64_t num_patches) {
    return frame_flops(tower_->spec(), num_patches);
  });
}

std::vector<PictureFrame> SharedTower::own_frames(const Batch& row) const {
  if (row.pictures == nullptr) return {};
  return shares_of(*row.pictures).frames[static_cast<size_t>(sharers_.rank())];
}

at::Tensor SharedTower::features(const std::shared_ptr<const RowPictures>& pictures,
                                 std::vector<PictureFrame> frames) {
  std::vector<PictureGrid> grids;
  for (const PictureFrame& frame : frames) {
    const PictureGrid& grid = pictures->pictures[frame.picture].grid;
    grids.push_back({.t = 1, .h = grid.h, .w = grid.w});
  }
  return tower_->features(
      [this, pictures, frames = std::move(frames)](size_t begin, size_t end) {
        // One frame at a time, so that the pixels are not in memory twice.
        int64_t num_patches = 0;
        for (size_t i = begin; i < end; ++i) num_patches += patches_in(*pictures, frames[i]);
        const at::Tensor patches_PX =
            at::empty({num_patches, tower_->spec().patch_dim()}, at::kFloat);
        int64_t first = 0;
        for (size_t i = begin; i < end; ++i) {
          const int64_t size = patches_in(*pictures, frames[i]);
          patches_PX.narrow(0, first, size)
              .copy_(patches_(pictures->pictures[frames[i].picture], frames[i].t));
          first += size;
        }
        return patches_PX.to(device_);
      },
      std::move(grids));
}

at::Tensor SharedTower::of(const Batch& row) {
  if (row.pictures == nullptr || row.pictures->pictures.empty()) {
    return every_row_ ? features(nullptr, {}) : at::Tensor();
  }
  const PictureShares shares = shares_of(*row.pictures);
  const at::Tensor own_fE =
      features(row.pictures, shares.frames[static_cast<size_t>(sharers_.rank())]);
  return exchange_features(own_fE, shares, *row.pictures, sharers_);
}

std::unique_ptr<SharedTower> make_picture_features(const ModelSpec& model,
                                                   const std::vector<NamedTensor>& parameters,
                                                   const DecoderOptions& options,
                                                   FramePatches patches,
                                                   const SequenceParallel& attention,
                                                   const BlockKernel& kernel) {
  if (!model.vision) return nullptr;
  auto tower = std::make_unique<VisionTower>(
      *model.vision, parameters,
      VisionOptions{.compute_dtype = options.compute_dtype,
                    .kernel = &kernel,
                    .gradient_checkpointing = options.gradient_checkpointing,
                    .activation_store = options.activation_store,
                    .parameter_hooks = options.parameter_hooks,
                    .first_unit = model.vision_unit(),
                    .lora_scale = options.lora_scale});
  // Parameters that train get gradients of zeros from rows without pictures, so that an update does
  // not depend on the rows that other ranks have.
  const bool every_row = tower->trains() || options.parameter_hooks != nullptr;
  return std::make_unique<SharedTower>(std::move(tower), std::move(patches), attention.sharers(),
                                       parameters.front().tensor.device(), every_row);
}

}  // namespace longspan
