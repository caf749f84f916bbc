"""He, Meng, Chen, Ma and Liu, *Differential Equations for Modeling Asynchronous Algorithms*."""
