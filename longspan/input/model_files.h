// Which files belong to a model's folder. A folder may come from a stranger: a link in such a
// folder could make the program read any file, and copy that file into its output. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns folder/name for opening. Call this function for every file that is read or copied from
/// the folder of a model, an adapter, a tokenizer or a checkpoint. The file need not exist. Throws
/// UserError (with the link, its target and a remedy) where the name is a link, or is reached
/// through a link, that leaves the folder or is broken. The folder itself may be a link. Follows
/// links of Hugging Face's cache, from REPOSITORY/snapshots/REVISION to REPOSITORY/blobs.
std::string model_file(const std::string& folder, const std::string& name);

/// The same check for all links in the folder whose file ending the program reads (.json,
/// .safetensors, ...). Throws UserError for the first such link by name. Accepts a folder that
/// cannot be read.
void require_own_files(const std::string& folder);

}  // namespace longspan
