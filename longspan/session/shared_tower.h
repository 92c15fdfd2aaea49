// The features of a row's pictures. The ranks of the row share the work of the vision tower.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "longspan/models/decoder.h"
#include "longspan/models/picture_features.h"
#include "longspan/sequence_parallel/picture_shares.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/vision/vision_tower.h"

namespace longspan {

class SharedTower : public PictureFeatures {
 public:
  /// `sharers`: the ranks that share a row. `every_row`: runs the tower for rows without pictures
  /// too. Collectives of sharded or trained parameters need this run on every rank.
  SharedTower(std::unique_ptr<VisionTower> tower, FramePatches patches, Group sharers,
              at::Device device, bool every_row);

  at::Tensor of(const Batch& row) override;
  /// Returns this rank's frames of the row. of(row) reads the pixels of these frames, in the order
  /// of the result.
  std::vector<PictureFrame> own_frames(const Batch& row) const;
  void use_adapters(bool on) override { tower_->use_adapters(on); }

 private:
  PictureShares shares_of(const RowPictures& pictures) const;
  /// Returns the features of some frames of the row.
  at::Tensor features(const std::shared_ptr<const RowPictures>& pictures,
                      std::vector<PictureFrame> frames);

  std::unique_ptr<VisionTower> tower_;
  FramePatches patches_;
  Group sharers_;
  at::Device device_;
  bool every_row_;
};

/// Makes the PictureFeatures of a model with pictures; null: the model's spec has no tower.
/// `options`: the options of the model's decoder. `kernel`: for attention within pictures.
std::unique_ptr<SharedTower> make_picture_features(const ModelSpec& model,
                                                   const std::vector<NamedTensor>& parameters,
                                                   const DecoderOptions& options,
                                                   FramePatches patches,
                                                   const SequenceParallel& attention,
                                                   const BlockKernel& kernel);

}  // namespace longspan
