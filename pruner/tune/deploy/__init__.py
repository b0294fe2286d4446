"""Deploy tuned programs as libraries that run without this package.

* `apply_records`: apply and count records of the tasks in the lowered network
* `build`: from records to a library, in a worker process
* `interface`: inputs and outputs of a network, inside its library
* `loaded`: a library that is called with tensors of torch or arrays of numpy
* `network`: draft, build, check against torch and time the network of a run folder
* `forms`: of a network with algebraic variants and without, build the faster
* `built_files`: the files of a deployment in the run folder
* `kernels`: of single operators: libraries and sources
"""
