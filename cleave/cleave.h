#pragma once
// The public interface: all that a program needs to define, train, save and run its own model.
// docs/library.md lists the headers. Programs written for NeuronX Distributed, OSLO or the course's
// notebook include cleave/compat/.
#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/base/version.h"
#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/save.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/data/dataset.h"
#include "cleave/data/order.h"
#include "cleave/layout/node.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/plan.h"
#include "cleave/parallel/recompute.h"
#include "cleave/parallel/zero1.h"
#include "cleave/pipeline/pipeline_model.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/verify/options.h"
#include "cleave/verify/verify.h"
