"""Complete networks: definitions, import into Relax, and their tasks.

* `convolutional`, `transformer`: named networks in plain torch, mostly of the
  paper's Tables 3 and 4
* `catalog`: their names
* `sizes`: the sizes that a user may set
* `host_memory`: check that a network fits before its weights are made
* `plain`: arguments and results as containers of tensors and constants
* `signature`: export of a module; inputs, outputs and state of the program
* `exported_file`: files of torch.export, also of a GPU or with unknown classes
* `operators`: such a program as a Relax module, and operators of torch that TVM lacks or
  imports wrongly
* `onnx_import`, `onnx_loops`, `operators_onnx`: ONNX files, loops in them, and operators that
  TVM lacks or gets wrong
* `source`: a named network, a user's factory or a file, as a Relax module
* `rewrites`: constants, layout, precision and packed weights
* `variants`: other ways to compute parts of a network, checked and chosen
* `lowering`: from Relax to functions that can be tuned
* `lowered_parts`: what lowerings made of equal calls and functions before
* `request`: a network with its target, and the lowered module, kept for the library
* `network_tasks`: distinct functions, how often each is called, its share of the work
* `coverage`: whether the engine computes a task's programs in batches
* `extraction`: all of these in a worker process, or from an earlier import
* `draft_network`: a drafted schedule for every task without a measurement
* `draft_task`: the draft of a task, in a worker process
* `filtering`: forecasts of many networks, from drafts that they share
"""
